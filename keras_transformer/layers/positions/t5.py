"""The learned bias of T5, which is added to the scores."""

import functools
from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
)


@position_encoding("t5")
class RelativePositionBias(PositionalEncoding):
    """Adds a learned bias to the attention scores, as in T5.

    Distances between query and key are grouped into buckets, and each head learns one bias per
    bucket. Each short distance has its own bucket. Longer distances share buckets, whose ranges
    grow geometrically. An encoder uses half of the buckets for keys after the query, a decoder
    none. The layers of an encoder share one `RelativePositionBias`, those of a decoder another.
    `keras.models.clone_model` keeps this for models of this package only; saving always does.

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

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", §2.1.
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

    def score_bias(self, distance: Tensor) -> Any:
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

    n = np.arange(max_distance + 1).astype(object)  # Python's integers, which have no limit
    begun = [n**shared * single**k >= max_distance**k * single**shared for k in range(1, shared)]
    return np.where(n < single, n, single + np.sum(begun, axis=0)).astype("int32")
