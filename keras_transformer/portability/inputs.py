"""Wraps a layer in a Keras model, and makes random inputs for a model."""

from typing import Any

import keras
import numpy as np

BATCH, LENGTH = 3, 7  # sizes of the first axis and of other axes, if the model's size is None


def as_model(model: Any, inputs: Any) -> keras.Model:
    """Returns `model` itself if it is a model; wraps a layer in a functional model.

    Args:
        model: A model or a layer.
        inputs: The inputs. For a layer: a dict from names of call arguments to values.

    Raises:
        ValueError: If `model` is neither a model nor a layer, or is a layer and `inputs` is None.
    """
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    if isinstance(model, keras.Model):
        if not model.built and inputs is not None:
            model(inputs)
        return model
    if inputs is None:
        raise ValueError(f"`inputs` must be given for a layer. Received: model={model!r}")
    if isinstance(inputs, dict):
        symbolic = {name: _symbolic(x, name) for name, x in inputs.items()}
        outputs = model(**symbolic)
    else:
        symbolic = keras.tree.map_structure(_symbolic, inputs)
        outputs = model(symbolic)
    return keras.Model(symbolic, outputs, name="model")


def random_inputs(model: keras.Model, seed: int = 0) -> Any:
    """Returns random inputs for a functional model, in the structure of its inputs.

    Floats are standard normal. Integers are valid ids for the embedding that reads the
    input or, if none reads it, for the model's smallest embedding. The first row ends with two
    padding ids.

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

    def make(spec: Any) -> np.ndarray:
        batch, *rest = spec.shape
        shape = (batch or BATCH, *(size or LENGTH for size in rest))
        if "float" in spec.dtype:
            return random.normal(size=shape).astype(spec.dtype)
        if spec.dtype == "bool":
            return random.choice([True, False], shape)
        ids = np.setdiff1d(np.arange(_vocabulary_size(model, spec)), [pad_id])
        drawn = random.choice(ids, shape).astype(spec.dtype)
        if len(shape) == 2 and shape[1] > 2:
            drawn[0, -2:] = pad_id
        return drawn

    return keras.tree.map_structure(make, structure)


def _symbolic(x: Any, name: str | None = None) -> Any:
    return keras.Input(x.shape[1:], dtype=keras.backend.standardize_dtype(x.dtype), name=name)


def _vocabulary_size(model: keras.Model, spec: Any) -> int:
    sizes, own = [], []
    for layer in model._flatten_layers():
        size = getattr(layer, "input_dim", None) or getattr(layer, "vocabulary_size", None)
        if isinstance(size, int):
            sizes.append(size)
            own += [size] if any(x is spec for x in _inputs_of(layer)) else []
    return min(own or sizes or [2])


def _inputs_of(layer: Any) -> list[Any]:
    try:
        return keras.tree.flatten(layer.input)
    except (AttributeError, ValueError):  # called several times, or never
        return []
