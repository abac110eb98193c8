"""Lets the translators of several adapters share one model, whose weights they take in turns."""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.operations import read
from keras_transformer.layers.saving import placeholder_weights
from keras_transformer.runs.base_model import check_base
from keras_transformer.runs.run import Run, opened_runs

Weights = dict[str, np.ndarray]  # by their paths


def open_adapters(
    translator: Any,
    runs: Mapping[str, Run | str | Path],
    bases: Sequence[Path],
    open_alone: Callable[[Run], Any],
) -> None:
    """Makes the `adapters` of a translator, which use its model. The model has no LoRA yet.

    `open_alone` returns the translator of a run. Raises `UserError` if the model of a run is not an
    adapter of each of `bases`, the files of the translator's model.
    """
    model = translator.model
    changed: dict[str | None, Weights] = {None: {}}
    for name, place in runs.items():
        (run,) = opened_runs(place)
        for base in bases:
            check_base(run.model_place(), base)
        other = translator.adapters[name] = open_alone(run)
        changed[name] = _changes(other.model, model)
        for shared in ("model", "_search", "_source_attention"):
            setattr(other, shared, getattr(translator, shared))
        other._scorer.model = model  # Its tokenizer can have other prefixes, and stays.
        other._scorer._score_pairs = translator._scorer._score_pairs
    turns = _Turns(model, changed)
    for turn, one in {None: translator, **translator.adapters}.items():
        one.own_weights = functools.partial(turns.of, turn)


class _Turns:
    """Gives a model the weights of one of its adapters at a time, or its own: the turn of None.

    The same variables get other values, so nothing is compiled again. If other adapters have LoRA
    in more layers, or of higher rank, the matrices of an adapter are padded with zeros.
    """

    def __init__(self, model: keras.Model, changed: Mapping[str | None, Weights]) -> None:
        with placeholder_weights():
            for layer in model._flatten_layers():
                matrices = (x.get(f"{layer.path}/lora_kernel_a") for x in changed.values())
                if ranks := [x.shape[1] for x in matrices if x is not None]:
                    layer.enable_lora(max(ranks))
        paths = {path for weights in changed.values() for path in weights}
        self._changed = [x for x in model.weights if x.path in paths]
        own = {x.path: _array(read(x), x.shape) for x in self._changed}
        self._of_turns = {
            turn: [
                _array(weights[x.path], x.shape) if x.path in weights else own[x.path]
                for x in self._changed
            ]
            for turn, weights in changed.items()
        }
        self._turn: str | None = None
        self._lock = threading.RLock()

    @contextmanager
    def of(self, turn: str | None) -> Iterator[None]:
        """Makes a context in which the model has the weights of a turn. Others wait for its end."""
        with self._lock:
            if turn != self._turn:
                for variable, value in zip(self._changed, self._of_turns[turn], strict=True):
                    variable.assign(value)
                self._turn = turn
            yield


def _changes(model: keras.Model, base: keras.Model) -> Weights:
    """Returns the weights that `base` does not have, or has with other values."""
    known = {x.path: x for x in base.weights}
    return {
        x.path: _array(read(x), x.shape)
        for x in model.weights
        if x.path not in known or not np.array_equal(read(x), read(known[x.path]))
    }


def _array(value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns a copy of the values of a weight, with zeros up to a shape."""
    return np.pad(value, [(0, size - own) for own, size in zip(value.shape, shape, strict=True)])
