"""Dropout with masks that cost little."""

import math
from typing import Any

import keras
from keras import ops

# Odd and close to 2 ** 32 over the golden ratio, so that neighbours lie far apart.
STRIDE = 0x9E3779B1
FACTORS = (0x7FEB352D, 0x846CA68B)
OFFSETS = (0x05EBCA6B, 0x0BD794D6)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Sets elements to 0 at random and scales up the others (§5.4).

    What is dropped is a hash of the element's index and of two numbers of the layer's
    `seed_generator`. `keras.layers.Dropout` draws random numbers instead, by another generator on
    every backend: on JAX that takes up to a third of the training step of a small model. Here a
    mask takes a few integer operations that compilers fuse with what follows, and it is the same on
    all backends: with equal seeds a model trains alike on each of them. On PyTorch nothing depends
    on the global generator.

    Example:

    >>> Dropout(0.1)(x, training=True)

    Args:
        rate: Share of elements to drop, in [0, 1).
        seed: Integer, for the same masks each time. Defaults to None: another in every layer.

    Call arguments:
        inputs: float tensor of fewer than 2 ** 31 elements.
        training: Whether to drop. Defaults to False.

    Returns:
        A float tensor like `inputs`.

    Attributes:
        fixed_seed: int32 tensor `(2,)` to hash instead of what `seed_generator` gives, or None.

    Source: Srivastava et al. 2014; the hash: Wellons 2018, "Prospecting for Hash Functions".
    """

    fixed_seed: Any = None

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, seed=seed, **kwargs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        seed = self.seed_generator.next() if self.fixed_seed is None else self.fixed_seed
        seed = ops.cast(seed, "int32")
        is_kept = keep_mask(seed, self.rate, ops.shape(inputs))
        return ops.where(is_kept, inputs * (1.0 / (1.0 - self.rate)), 0.0)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["noise_shape"]
        return config


def keep_mask(seed: Any, rate: float, shape: Any) -> Any:
    """Says what is kept: a bool tensor of `shape`, a function of two int32 numbers `seed`."""
    bits = ops.reshape(_random_bits(seed, math.prod(shape)), shape)
    return bits >= round((rate - 0.5) * 2**32)


def _random_bits(seed: Any, count: Any) -> Any:
    """Returns int32 `(count,)` that look random, a function of two int32 numbers `seed`.

    The numbers are mixed first: masks of neighbouring ones would have much in common.
    """
    keys = _mix(seed * _int32(STRIDE) + ops.convert_to_tensor(OFFSETS, "int32"))
    indices = (ops.arange(count, dtype="int32") + keys[0]) * _int32(STRIDE)
    return _mix(ops.bitwise_xor(indices, keys[1]))


def _mix(x: Any) -> Any:
    """Makes every bit depend on all bits of `x`, int32; no two numbers become the same."""
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * _int32(FACTORS[0])
    x = ops.bitwise_xor(x, _shift_right(x, 15)) * _int32(FACTORS[1])
    return ops.bitwise_xor(x, _shift_right(x, 16))


def _int32(number: int) -> int:
    """The number with the same 32 bits that fits; products wrap around alike."""
    return number - 2**32 if number >= 2**31 else number


def _shift_right(x: Any, count: int) -> Any:
    """As if `x` were unsigned, which PyTorch's integers of 32 bits are not."""
    return ops.bitwise_and(ops.right_shift(x, count), 2 ** (32 - count) - 1)
