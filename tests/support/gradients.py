"""Gradients on any backend."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from support.contract import to_numpy


def gradients_of(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Value and gradients of a scalar function of arrays, compiled where the backend compiles.

    On TensorFlow the graph knows matrices, such as weights, and of arrays of more axes the last one
    alone, as under `fit`.
    """
    if keras.backend.backend() == "jax":
        import jax

        value, gradients = jax.jit(jax.value_and_grad(function, range(len(arrays))))(*arrays)
    elif keras.backend.backend() == "tensorflow":
        value, gradients = _tensorflow_gradients(function, arrays)
    else:
        import torch

        tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
        value = function(*tensors)
        value.backward()
        value, gradients = value.detach(), [x.grad for x in tensors]
    return to_numpy(value), *map(to_numpy, gradients)


def _tensorflow_gradients(function: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> Any:
    import tensorflow as tf

    shapes = [x.shape if x.ndim < 3 else (None,) * (x.ndim - 1) + x.shape[-1:] for x in arrays]
    signature = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, arrays, strict=True)]

    @tf.function(input_signature=signature)
    def compute(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        return value, tape.gradient(value, tensors)

    return compute(*arrays)
