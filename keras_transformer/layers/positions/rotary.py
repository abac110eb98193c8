"""Rotary positions, which rotate queries and keys."""

from typing import Any

from keras import ops

from keras_transformer._backend.types import Size, Tensor
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
    sinusoid_angles,
)


@position_encoding("rotary")
class RotaryPositionalEncoding(PositionalEncoding):
    """Rotates pairs of features of queries and keys by angles proportional to the position.

    The dot product of a query and a key then depends on the distance between them, but not on their
    absolute positions. The width K of a head must be even. The rotation is computed in float32.

    Example:

    >>> rotary = RotaryPositionalEncoding()
    >>> attention = MultiHeadAttention(d_model=64, num_heads=4, position_encoding=rotary)

    Args:
        max_wavelength: Base of the angles `position / max_wavelength^(2i / K)`. Large ones are for
            long texts. Defaults to 10,000.

    Source: Su et al. 2021, RoFormer, eq. 34 (features 2i and 2i+1 form a pair).
    """

    def __init__(self, max_wavelength: float = 10_000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength

    def rotate(self, heads: Tensor, offset: Size = 0) -> Any:
        width = heads.shape[-1]
        shape = ops.shape(heads)
        angles = sinusoid_angles(shape[-2], width, offset, max_wavelength=self.max_wavelength)
        if len(angles.shape) == 3:  # those of sentences, for all heads
            angles = angles[:, None]
        pairs = ops.reshape(ops.cast(heads, "float32"), (*shape[:-1], width // 2, 2))
        even, odd = pairs[..., 0], pairs[..., 1]
        sine, cosine = ops.sin(angles), ops.cos(angles)
        rotated = ops.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return ops.cast(ops.reshape(rotated, shape), heads.dtype)
