"""Layer normalization, RMS normalization, and a registry of names."""

import functools
import inspect
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import Recomputable
from keras_transformer._backend.operations import one_pass_normalization
from keras_transformer._backend.types import Mask, Tensor
from keras_transformer.layers.base import Registry

# A class is a Keras layer with the arguments `epsilon`, `dtype` and `name`. If its `call` takes
# `padding_mask`, it gets the bool tensor `(B, T)`, True = real token, or None.
NORMALIZATIONS = Registry("normalization")
normalization = NORMALIZATIONS.register


@normalization("layer")
class LayerNormalization(Recomputable, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` that takes one pass on GPUs of JAX."""

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Tensor) -> Any:
        if self.axis == [-1] and not self.rms_scaling:
            x = one_pass_normalization(inputs, self.gamma, self.beta, self.epsilon)
            if x is not None:
                return ops.cast(x, self.compute_dtype)
        return super().call(inputs)


@normalization("rms")
class RMSNormalization(Recomputable, keras.layers.RMSNormalization):
    """Computes `scale * x / sqrt(mean(x²) + epsilon)` for each token, in float32.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, eq. 4.
    """


@functools.cache
def takes_padding_mask(norm: Any) -> bool:
    """Returns whether the `call` of a class of norms has the argument `padding_mask`."""
    return "padding_mask" in inspect.signature(norm.call).parameters


def normalize(norm: keras.layers.Layer, x: Tensor, padding_mask: Mask | None) -> Tensor:
    """Applies a layer of one of the `NORMALIZATIONS`."""
    return norm(x, padding_mask=padding_mask) if takes_padding_mask(norm.__class__) else norm(x)
