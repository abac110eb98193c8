"""Self-attention within a window, computed in blocks."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.attention_pattern import (
    AttentionPattern,
    attention_pattern,
    check_one_length,
    fitting_size,
    join_blocks,
    key_marks,
    neighbour_distances,
    split_blocks,
    with_neighbours,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)

SMALLEST_BLOCK = 64


@attention_pattern("local")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class LocalAttention(AttentionPattern):
    """Attends to positions at most `window` positions away (restricted self-attention, §4).

    The sequence is split into blocks of `window` positions, or of 64 positions if `window` is less
    than 64. The queries of a block are multiplied by the keys of this block and of the neighbouring
    blocks. Time and memory are proportional to the sequence length times `window`. In each layer,
    information moves by at most `window` positions.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=LocalAttention(window=128))

    Args:
        window: Largest distance in tokens between query and key, at least 1 (r in the paper). The
            window covers earlier and later keys. A causal mask excludes all later keys.

    Raises:
        ValueError: If `window` is less than 1, or if a call has different numbers of queries and
            keys.

    Source: Vaswani et al. 2017, §4, "restricted self-attention".
    """

    needs_window = True
    window: int

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        padding_mask: Any = None,
        use_causal_mask: bool = False,
        use_scale: bool = True,
        dropout: Any = None,
        training: bool = False,
    ) -> Any:
        check_one_length(query, key, self)
        size = fitting_size(max(self.window, SMALLEST_BLOCK), ops.shape(key)[2])
        keys, values, marks = (
            with_neighbours(split_blocks(x, size), use_causal_mask)
            for x in (key, value, key_marks(key, padding_mask))
        )
        distance = neighbour_distances(size, use_causal_mask)
        allowed = self.allows(distance, 0)
        if use_causal_mask:
            allowed = ops.logical_and(allowed, distance >= 0)
        heads, _ = scaled_dot_product_attention(
            split_blocks(query, size),
            keys,
            values,
            attention_mask=ops.logical_and(allowed, ops.swapaxes(marks, -1, -2) > 0),
            use_scale=use_scale,
            dropout=dropout and functools.partial(dropout, training=training),
        )
        return join_blocks(heads, ops.shape(query)[2])

    def allows(self, query: Any, key: Any) -> Any:
        return ops.abs(query - key) <= self.window
