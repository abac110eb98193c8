"""Dropout with masks that are fast to compute."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import (
    Recomputable,
    RepeatableDropout,
    check_not_recomputed_by_keras,
)
from keras_transformer._backend.operations import scalar
from keras_transformer._backend.types import Tensor

# The int32 of 0x9E3779B1. Multiplication by this odd number, about 2 ** 32 / golden ratio, moves
# close indices apart.
STRIDE = -1640531535
FACTORS = (0x7FEB352D, 0x846CA68B - 2**32)
OFFSETS = (0x05EBCA6B, 0x0BD794D6)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(RepeatableDropout, Recomputable, keras.layers.Dropout):
    """Sets random elements to 0 and scales up the other elements (§5.4).

    The dropout mask is a hash of each element's index and two numbers from the layer's
    `seed_generator`. The hash needs few integer operations, and compilers fuse them with the
    operation that applies the mask. Equal seeds give equal masks on all backends.

    Example:

    >>> Dropout(0.1)(x, training=True)

    Args:
        rate: Fraction of elements to drop, in [0, 1).
        noise_shape: Shape of the dropout mask, None for the sizes of `inputs`. Defaults to None.
        seed: Integer for reproducible masks. Defaults to None: a random seed for each layer.

    Call arguments:
        inputs: float tensor of fewer than 2 ** 31 elements.
        training: Whether to apply dropout. Defaults to False.

    The result has the shape and dtype of `inputs`. If the attribute `fixed_seed`, an int32 tensor
    `(2,)`, is set, it replaces the numbers of `seed_generator`.

    Source: Srivastava et al. 2014. The hash function is from Wellons 2018, "Prospecting for Hash
    Functions".
    """

    def call(self, inputs: Tensor, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        check_not_recomputed_by_keras(self)
        return self.drop(inputs, self.next_seed())

    def drop(self, inputs: Tensor, seed: Tensor) -> Any:
        """Applies the dropout mask of an int32 seed `(2,)`."""
        given = self.noise_shape or (None,) * len(inputs.shape)
        shape = [own if x is None else x for x, own in zip(given, ops.shape(inputs), strict=True)]
        is_kept = keep_mask(seed, self.rate, shape)
        return ops.where(is_kept, inputs * (1.0 / (1.0 - self.rate)), scalar(0, inputs.dtype))

    def next_seed(self) -> Any:
        """Returns an int32 seed `(2,)`: `fixed_seed` if it is set, otherwise two new numbers.

        The numbers are those of `seed_generator.next()`, which copies a constant to the device.
        """
        if self.fixed_seed is not None:
            return ops.cast(self.fixed_seed, "int32")
        state = self.seed_generator.state
        seed = state.value * 1  # a copy, because `assign` changes the tensor on PyTorch
        state.assign(seed + ops.arange(2, dtype=state.dtype))
        return ops.cast(seed, "int32")


def keep_mask(seed: Tensor, rate: float, shape: Sequence[Any]) -> Any:
    """Computes a bool mask of `shape` from an int32 `seed` `(2,)`. True = keep the element."""
    # Mixes the seed first; otherwise, neighbouring seeds would give similar masks.
    first, second = OFFSETS
    offsets = ops.arange(2, dtype="int32") * (second - first) + first
    keys = _mix(seed * STRIDE + offsets)
    indices = (ops.arange(math.prod(shape), dtype="int32") + keys[0]) * STRIDE
    bits = ops.reshape(_mix(ops.bitwise_xor(indices, keys[1])), shape)
    return bits >= round((rate - 0.5) * 2**32)


def _mix(x: Any) -> Any:
    """Mixes the bits of int32 numbers, so that each result bit depends on all bits of a number."""
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * FACTORS[0]
    x = ops.bitwise_xor(x, _shift_right(x, 15)) * FACTORS[1]
    return ops.bitwise_xor(x, _shift_right(x, 16))


def _shift_right(x: Any, count: int) -> Any:
    """Shifts int32 numbers right and fills the free bits with zeros.

    PyTorch cannot shift unsigned 32-bit integers.
    """
    if keras.config.backend() == "torch":  # see `scalar`
        return (x >> count) & (2 ** (32 - count) - 1)
    return ops.bitwise_and(ops.right_shift(x, count), 2 ** (32 - count) - 1)
