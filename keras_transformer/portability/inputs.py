"""Functional models of single layers, random inputs for functional models, and files of inputs."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None


def is_float(x: Any) -> bool:
    """Returns whether a value is a tensor, array or variable of floats."""
    return hasattr(x, "shape") and "float" in keras.backend.standardize_dtype(x.dtype)


def as_array(x: Any) -> np.ndarray:
    """Converts a tensor, variable or array to an array. All float dtypes become float32."""
    array = np.array(keras.ops.convert_to_numpy(x))
    return array.astype("float32") if is_float(x) else array


def save_inputs(folder: Path, inputs: Any) -> None:
    """Writes arrays to `inputs.npz`, and the structure of their numbers to `inputs.json`."""
    arrays = [as_array(x) for x in keras.tree.flatten(inputs)]
    np.savez(folder / "inputs.npz", *arrays)
    structure = keras.tree.pack_sequence_as(inputs, list(range(len(arrays))))
    (folder / "inputs.json").write_text(json.dumps(structure), encoding="utf-8")


def load_inputs(folder: Path) -> Any:
    """Reads what `save_inputs` wrote."""
    structure = json.loads((folder / "inputs.json").read_bytes())
    with np.load(folder / "inputs.npz") as arrays:
        return keras.tree.map_structure(lambda number: arrays[f"arr_{number}"], structure)


def functional_model(layer: Any, *arguments: Any, **named: Any) -> tuple[keras.Model, list[Any]]:
    """Returns a functional model that calls `layer` with these arguments, and the model's inputs.

    The model has one input for each tensor among the arguments, and one output for each tensor that
    the layer returns. Other arguments, such as True or None, become constants of the model.
    """
    given = keras.tree.flatten((arguments, named))
    tensors = [x for x in given if hasattr(x, "shape")]
    symbols = [
        keras.Input(batch_shape=tuple(x.shape), dtype=keras.backend.standardize_dtype(x.dtype))
        for x in tensors
    ]
    remaining = iter(symbols)
    values = [next(remaining) if hasattr(x, "shape") else x for x in given]
    arguments, named = keras.tree.pack_sequence_as((arguments, named), values)
    outputs = keras.tree.flatten(layer(*arguments, **named))
    outputs = [x for x in outputs if isinstance(x, keras.KerasTensor)]
    return keras.Model(symbols, outputs, name="model"), tensors


def random_inputs(model: keras.Model, seed: int = 0) -> Any:
    """Returns random inputs for a functional model, in the structure of its inputs.

    Floats are standard normal. Integers are valid ids for the embedding that reads the input. If no
    embedding reads the input, the ids are valid for the model's smallest embedding. Without any
    embedding, the ids are less than 3. If the name of an input ends in "positions", its values are
    positions of the other inputs. In a matrix of ids with more than two columns, the first row
    ends with two padding ids, if padding is a valid id there. Axes of unknown size have at most
    as many elements as the `max_length` of any layer.

    Raises:
        ValueError: If `model` is not a functional model.
    """
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"`inputs` must be given for a model that is not functional. Received: model={model!r}"
        )
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    random = np.random.default_rng(seed)
    pad_id = getattr(model, "pad_id", 0)
    length = min(getattr(layer, "max_length", LENGTH) for layer in model._flatten_layers())
    length = min(length, LENGTH)

    def make(spec: Any) -> np.ndarray:
        batch, *rest = spec.shape
        shape = (batch or BATCH, *(size or length for size in rest))
        if "float" in spec.dtype:
            return random.normal(size=shape).astype(spec.dtype)
        if spec.dtype == "bool":
            return random.choice([True, False], shape)
        if spec.name.endswith("positions"):
            return random.integers(length, size=shape, dtype=spec.dtype)
        ids = np.arange(_vocabulary_size(model, spec))
        has_padding = pad_id in ids and len(shape) == 2 and shape[1] > 2
        ids = ids[ids != pad_id] if len(ids) > 2 else ids  # segments are few
        drawn = random.choice(ids, shape).astype(spec.dtype)
        if has_padding:
            drawn[0, -2:] = pad_id
        return drawn

    return keras.tree.map_structure(make, structure)


def _vocabulary_size(model: keras.Model, spec: Any) -> int:
    sizes, own = [], []
    for layer in model._flatten_layers():
        size = getattr(layer, "input_dim", None) or getattr(layer, "vocabulary_size", None)
        if isinstance(size, int):
            sizes.append(size)
            # By name: a nested model has an input of its own.
            own += [size] if any(x.name == spec.name for x in _inputs_of(layer)) else []
    return min(own or sizes or [3])


def _inputs_of(layer: Any) -> list[Any]:
    try:
        return keras.tree.flatten(layer.input)
    except (AttributeError, ValueError):  # called several times, or never
        return []
