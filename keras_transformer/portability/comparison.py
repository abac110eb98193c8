"""Runs a model on every installed backend, each in its own process, and compares the results."""

import itertools
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer._backend import BACKENDS, child_process, installed_backends
from keras_transformer._backend.types import Tensor
from keras_transformer._progress import Bar
from keras_transformer.capabilities import Capabilities
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import Searchable
from keras_transformer.portability import backend_checks
from keras_transformer.portability.backend_checks import (
    Arrays,
    as_array,
    differences,
    draws_random_numbers,
    predict,
    record,
    tensors_in,
)

BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None
TINY = 1e-30  # to divide by a tolerance of 0
Answers = dict[str, Arrays | str]  # of each backend; an error as text
_MISSING = record([np.empty(0), np.empty(0)])
# Three processes share the GPU's memory, and compute float32 without loss of precision.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}


class ArrayDifference(NamedTuple):
    """The difference of an array between two backends that is largest relative to its tolerance."""

    name: str
    largest: float
    tolerance: float

    @property
    def is_error(self) -> bool:
        """Whether rounding cannot explain the difference."""
        return self.largest > self.tolerance

    def __str__(self) -> str:
        return f"{self.largest:.1e} / {self.tolerance:.1e}{' !' * self.is_error}"


Cells = dict[tuple[str, ...], ArrayDifference | None]  # by the names of two backends


@dataclass
class Conformance:
    """The result of `conformance`. `str(result)` formats the result as a table.

    Attributes:
        largest: `largest[check][pair]` is the difference of a pair of backends that is largest
            relative to its tolerance. It is None if one of the two backends failed, or if the check
            has no results.
        failures: The errors and differences of the first check that fails, with the first layer
            that differs.
        notes: Remarks for the user.
    """

    largest: dict[str, Cells]
    failures: list[str]
    notes: list[str]

    @property
    def conforms(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        pairs = self.largest["outputs"]
        lines = [f"{'difference / tolerance':<24}" + "".join(f"{' - '.join(x):>24}" for x in pairs)]
        for check, cells in self.largest.items():
            lines.append(f"{check:<24}" + "".join(f"{str(x or '-'):>24}" for x in cells.values()))
        return "\n".join([*lines, *self.notes, *self.failures])


def conformance(
    model: keras.layers.Layer, inputs: Any = None, *, imports: Iterable[str] = ()
) -> Conformance:
    """Checks that a Keras model or layer gives the same results on all installed backends.

    Each backend runs in a new process, which loads the model from a `.keras` file with
    `safe_mode=True`. The function compares

    - "outputs", those of `predict`. If they differ, it looks for the first layer call whose outputs
      differ although its inputs agree.
    - "training step", the gradients of a randomly weighted mean of the outputs, and the other
      variables after the step. Backends draw different random numbers, so a model with dropout
      takes the step with `training=False`.
    - "search", the ids and scores of beam search, if the model is a `models.protocol.Searchable`.
    - "save and load", the outputs of the model and of its saved file on each backend.

    Example:

    >>> print(conformance(MyLayer(64), np.ones((2, 5, 64), "float32")))

    Args:
        model: A `keras.Model` or a layer. The processes import the modules of the classes of all
            its layers.
        inputs: A small batch, in the structure that the model takes. For a layer, a dict maps names
            of call arguments to values. Defaults to None, for random inputs of a functional model.
        imports: Names of further modules to import, for example for a custom activation.

    Raises:
        UserError: If fewer than two backends are installed, or if `inputs` is None although `model`
            is not a functional model.
    """
    installed = installed_backends()
    missing = [name for name in BACKENDS if name not in installed]
    if len(installed) < 2:
        raise UserError(
            "a comparison needs two backends: "
            f"pip install 'keras3-transformer[{missing[0]}]' installs {missing[0]} too"
        )
    if inputs is None:
        inputs = random_inputs(model)
    elif not isinstance(model, keras.Model):
        model, inputs = _model_of_layer(model, inputs)
    elif not model.built:
        model(inputs)
    inputs = keras.tree.map_structure(as_array, inputs)
    modules = [*imports, *{type(layer).__module__ for layer in model._flatten_layers()}]
    checks = ["outputs", "training step", *["search"] * isinstance(model, Searchable)]
    with tempfile.TemporaryDirectory() as folder:
        content = keras.saving.serialize_keras_object(inputs)
        Path(folder, "inputs.json").write_text(json.dumps(content))
        model.save(f"{folder}/model.keras")
        answers = _run(checks, installed, folder, modules)
        largest = {check: _largest(found) for check, found in answers.items()}
        outputs = predict(model, inputs).items()
        original: Arrays = {x: record([y, np.zeros(y.shape)]) for x, y in outputs}
        largest["save and load"] = _largest(answers["outputs"], original)
        calls: Answers = {}
        if any(x and x.is_error for x in largest["outputs"].values()):
            calls = _run(["layer calls"], installed, folder, modules)["layer calls"]
    notes = [f"not installed: {', '.join(missing)}"] if missing else []
    if draws_random_numbers(model):
        notes.append("training step: training=False, because the model draws random numbers")
    return Conformance(largest, _failures(answers, largest, calls), notes)


def _model_of_layer(layer: keras.layers.Layer, inputs: Any) -> tuple[keras.Model, list[Any]]:
    """Returns a functional model that calls a layer, and the tensors among its inputs."""
    named = inputs if isinstance(inputs, dict) else {}
    tensors = {name: x for name, x in named.items() if tensors_in(x)} or inputs

    def symbol(x: Tensor) -> keras.KerasTensor:
        return keras.Input(batch_shape=x.shape, dtype=keras.backend.standardize_dtype(x.dtype))

    symbols = keras.tree.map_structure(symbol, tensors)
    outputs = layer(**{**named, **symbols}) if named else layer(symbols)
    flatten = keras.tree.flatten
    return keras.Model(flatten(symbols), tensors_in(outputs), name="model"), flatten(tensors)


def _run(
    checks: Sequence[str], backends: Sequence[str], folder: str, modules: Sequence[str]
) -> dict[str, Answers]:
    """Runs checks on all backends at once, each in its own process."""
    paths = [path or os.getcwd() for path in sys.path]
    program = f"import sys; sys.path[:] = {paths}; from {backend_checks.__name__} import run; "
    words = [sys.executable, "-c", f"{program}run{folder, modules, checks}"]
    processes = {}
    with ExitStack() as stack:
        for name in backends:
            log = stack.enter_context(open(f"{folder}/{name}.log", "w"))
            env = {**os.environ, **_ENVIRONMENT, "KERAS_BACKEND": name}
            process = child_process(words, env=env, stdin=DEVNULL, stdout=log, stderr=log)
            processes[name] = stack.enter_context(process)
        for process in Bar("comparing", iterable=processes.values(), leave=False):
            process.wait()

    def answer(check: str, name: str) -> Arrays | str:
        with suppress(FileNotFoundError), np.load(f"{folder}/{check} {name}.npz") as file:
            return str(file["error"]) if "error" in file else dict(file)
        last = Path(folder, f"{name}.log").read_text(errors="replace").strip().rpartition("\n")[-1]
        return f"the process ended with status {processes[name].returncode}: {last}"

    return {check: {name: answer(check, name) for name in backends} for check in checks}


def _largest(answers: Answers, original: Arrays | None = None) -> Cells:
    """Returns the largest difference of each pair of backends, or of both to the `original`."""
    cells: Cells = {}
    for pair in itertools.combinations(answers, 2):
        found = [x for x in map(answers.get, pair) if isinstance(x, dict)]
        rows = [[x, original] for x in found] if original else [found] * (len(found) == 2)
        every = [x for row in rows for x in array_differences(*row)]
        cells[pair] = max(every, key=lambda x: x.largest / max(x.tolerance, TINY), default=None)
    return cells


def array_differences(one: Arrays, other: Arrays) -> list[ArrayDifference]:
    """Compares the arrays of two backends. Where shapes differ, the difference is infinite."""
    found = []
    for name in {**one, **other}:
        both = [given.get(name, _MISSING) for given in (one, other)]
        x, y = (given["value"] for given in both)
        changes, tolerance = np.array([math.inf]), np.zeros(1)
        if (x.shape, x.dtype.kind) == (y.shape, y.dtype.kind):
            changes = np.append(differences(x, y), 0.0)  # not empty
            tolerance = np.append(np.maximum(*(given["tolerance"] for given in both)), 0.0)
        worst = np.argmax(changes / np.maximum(tolerance, TINY))
        found.append(ArrayDifference(name, float(changes[worst]), float(tolerance[worst])))
    return found


def _failures(answers: dict[str, Answers], largest: dict[str, Cells], calls: Answers) -> list[str]:
    """Returns the errors and the differences of the first check that fails."""
    for check, cells in largest.items():
        errors = [(x, y) for x, y in answers.get(check, {}).items() if isinstance(y, str)]
        found = [f"{check}: {name} fails: {' '.join(x.split())[-1_000:]}" for name, x in errors]
        for pair, x in cells.items():
            if x and x.is_error:
                call = _first_call(*map(calls.get, pair)) if check == "outputs" else None
                place = f"{' and '.join(pair)} differ in {call or 'the whole model'}"
                found.append(f"{check}: {place}: {x.name}: {x}")
        if found:
            return found
    return []


def _first_call(one: Arrays | str | None, other: Arrays | str | None) -> str | None:
    """Returns the first layer call whose outputs differ although its inputs agree."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return None
    names = [x.name.rsplit(" ", 2) for x in array_differences(one, other) if x.is_error]
    inputs = {call for call, kind, _ in names if kind == "input"}
    return next((x for x, kind, _ in names if kind == "output" and x not in inputs), None)


def random_inputs(model: keras.layers.Layer) -> Any:
    """Returns random inputs for a functional model, in the structure of its inputs.

    Integers are valid ids for the embedding that reads the input, or else for the model's smallest
    embedding. If the name of an input ends in "positions", they are positions of the other inputs.
    In a matrix of more than two columns, the first row of ids ends with padding, if it is valid.
    """
    if not Capabilities.of(model).inputs:
        raise UserError(
            "the shapes of the inputs of a model that is not functional are unknown: call "
            f"`conformance(model, inputs)` in Python. Received: model={model!r}"
        )
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    layers = list(model._flatten_layers())
    length = min([LENGTH, *(x.max_length for x in layers if hasattr(x, "max_length"))])
    random, pad_id = np.random.default_rng(0), Capabilities.of(model).pad_id

    def make(spec: keras.KerasTensor) -> np.ndarray:
        batch, *rest = spec.shape
        shape = (batch or BATCH, *(size or length for size in rest))
        if "float" in spec.dtype:
            return random.normal(size=shape).astype(spec.dtype)
        if spec.dtype == "bool":
            return random.choice([True, False], shape)
        if spec.name.endswith("positions"):
            return random.integers(length, size=shape, dtype=spec.dtype)
        ids = np.arange(_vocabulary_size(layers, spec.name))
        others = ids[ids != pad_id] if len(ids) > 2 else ids  # segments are few
        drawn = random.choice(others, shape).astype(spec.dtype)
        if pad_id in ids and len(shape) == 2 and shape[1] > 2:
            drawn[0, -2:] = pad_id
        return drawn

    return keras.tree.map_structure(make, structure)


def _vocabulary_size(layers: Iterable[keras.layers.Layer], name: str) -> int:
    sizes, own = [], []
    for layer in layers:
        size = getattr(layer, "input_dim", None) or getattr(layer, "vocabulary_size", None)
        if isinstance(size, int):
            sizes.append(size)
            with suppress(AttributeError, ValueError):  # called several times, or never
                # By name: a nested model has an input of its own.
                own += [size for x in keras.tree.flatten(layer.input) if x.name == name]
    return min(own or sizes or [3])
