"""Makes the inputs of a model that is compared: random ones, or those of a layer."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.types import Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.errors import UserError

BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None


def tensors_in(structure: Any) -> list[Any]:
    """Returns the tensors, arrays and variables of a structure."""
    return [x for x in keras.tree.flatten(structure) if hasattr(x, "shape")]


def model_of_layer(layer: keras.layers.Layer, inputs: Any) -> tuple[keras.Model, list[Any]]:
    """Returns a functional model that calls a layer, and the tensors among its inputs."""
    named = inputs if isinstance(inputs, dict) else {}
    tensors = {name: x for name, x in named.items() if tensors_in(x)} or inputs

    def symbol(x: Tensor) -> keras.KerasTensor:
        return keras.Input(batch_shape=x.shape, dtype=keras.backend.standardize_dtype(x.dtype))

    symbols = keras.tree.map_structure(symbol, tensors)
    outputs = layer(**{**named, **symbols}) if named else layer(symbols)
    flatten = keras.tree.flatten
    return keras.Model(flatten(symbols), tensors_in(outputs), name="model"), flatten(tensors)


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
