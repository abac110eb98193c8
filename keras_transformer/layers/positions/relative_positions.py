"""Position encodings that change queries, keys or scores, so that only distances have an effect."""

import functools
from typing import Any

import numpy as np
from keras import ops

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

    Source: Su et al. 2021, RoFormer, eq. 34 (features 2i and 2i+1 form a pair).
    """

    def rotate(self, heads: Any, offset: Any = 0) -> Any:
        width = heads.shape[-1]
        shape = ops.shape(heads)
        angles = sinusoid_angles(shape[-2], width, offset)
        pairs = ops.reshape(ops.cast(heads, "float32"), (*shape[:-1], width // 2, 2))
        even, odd = pairs[..., 0], pairs[..., 1]
        sine, cosine = ops.sin(angles), ops.cos(angles)
        rotated = ops.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return ops.cast(ops.reshape(rotated, shape), heads.dtype)


@position_encoding("alibi")
class ALiBiPositionalEncoding(PositionalEncoding):
    """Lowers the scores of each head in proportion to the distance between query and key.

    For a query at position i and a key at position j, the bias of head h is -m_h |i - j|. If the
    number of heads H is a power of two, the slopes m_1, ..., m_H are 2^(-8/H), 2^(-16/H), ...,
    2^-8. Otherwise, let P be the largest power of two below H. The first P heads have the slopes of
    a layer with P heads, and the others the slopes m_1, m_3, m_5, ... of a layer with 2P heads. The
    ALiBi paper covers only causal attention: an encoder cannot distinguish a sentence from its
    reverse.

    Example:

    >>> alibi = ALiBiPositionalEncoding(num_heads=8)
    >>> attention = MultiHeadAttention(d_model=64, num_heads=8, position_encoding=alibi)

    Args:
        num_heads: Number of attention heads H.

    Source: Press, Smith and Lewis 2022, "Train Short, Test Long".
    """

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def score_bias(self, distance: Any) -> Any:
        slopes = ops.convert_to_tensor(_slopes(self.num_heads), "float32")
        slopes = ops.reshape(slopes, (-1, *(1 for _ in distance.shape)))
        return -slopes * ops.cast(ops.abs(distance), "float32")


def _slopes(num_heads: int) -> np.ndarray:
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    if power == num_heads:
        return slopes
    return np.concatenate([slopes, _slopes(2 * power)[::2][: num_heads - power]])


@position_encoding("t5")
class RelativePositionBias(PositionalEncoding):
    """Adds a learned bias to the attention scores, as in T5.

    Distances between query and key are grouped into buckets. Each head learns one bias per bucket.
    Each short distance has its own bucket. Longer distances share buckets, whose ranges grow
    geometrically. An encoder uses half of the buckets for keys after the query, a decoder none. The
    layers of an encoder share one `RelativePositionBias`, and the layers of a decoder another.

    Example:

    >>> bias = RelativePositionBias(num_heads=8)
    >>> attention = MultiHeadAttention(d_model=64, num_heads=8, position_encoding=bias)

    Args:
        num_heads: Number of attention heads H.
        bidirectional: Whether keys after the query have their own buckets. If False, all keys
            after the query are in the bucket of distance 0. Defaults to True.
        num_buckets: Number of buckets, even and at least 4. Defaults to 32.
        max_distance: Distances of at least this many tokens share the last bucket. This number must
            be more than `num_buckets / 2`. Defaults to 128.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer", §2.1.
    """

    def __init__(
        self,
        num_heads: int,
        bidirectional: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_buckets % 2 or not 4 <= num_buckets < 2 * max_distance:
            raise ValueError(
                "`num_buckets` must be even, at least 4, and less than `2 * max_distance`. "
                f"Received: num_buckets={num_buckets}, max_distance={max_distance}"
            )
        self.store_arguments(locals())
        # Created here, not in `build`, because attention layers call only `score_bias`.
        self.relative_attention_bias = self.add_weight(
            name="relative_attention_bias",
            shape=(num_buckets, num_heads),
            initializer="glorot_uniform",
            autocast=False,
        )

    def score_bias(self, distance: Any) -> Any:
        count = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        table = ops.convert_to_tensor(_buckets(count, self.max_distance), "int32")
        size = ops.abs(distance) if self.bidirectional else ops.maximum(distance, 0)
        buckets = ops.take(table, ops.minimum(size, self.max_distance), axis=0)
        if self.bidirectional:
            buckets = ops.where(distance < 0, buckets + count, buckets)
        bias = ops.take(self.relative_attention_bias, buckets, axis=0)
        return ops.cast(ops.moveaxis(bias, -1, 0), "float32")

    def for_decoder(self) -> PositionalEncoding:
        sizes = (self.num_buckets, self.max_distance)
        name = f"decoder_{self.name}"
        return type(self)(self.num_heads, False, *sizes, dtype=self.dtype_policy, name=name)


@functools.cache
def _buckets(count: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance from 0 to `max_distance`, int `(max_distance + 1,)`.

    The first `single` buckets contain one distance each. Bucket `single + k` starts at distance
    `single * (max_distance / single)^(k / shared)`, which is compared in integers, both sides
    raised to the power `shared`, to avoid rounding errors.
    """
    single = count // 2
    shared = count - single

    def bucket(n: int) -> int:
        begun = [
            n**shared * single**k >= max_distance**k * single**shared for k in range(1, shared)
        ]
        return n if n < single else single + sum(begun)

    return np.array([bucket(n) for n in range(max_distance + 1)])
