"""Self-attention to neighbours and to every `stride`-th position, computed in blocks."""

import math
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
    masked_scores,
    neighbour_distances,
    split_blocks,
    with_neighbours,
)


@attention_pattern("strided")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class StridedAttention(AttentionPattern):
    """Attends to neighbours and to positions whose distance is a multiple of the stride.

    Neighbours are at most `stride` positions away. In every head, one softmax covers neighbours and
    distant positions ("merged head" in Child et al.). Time and memory for a sequence of length T
    are proportional to T * (3 * stride + T / stride). With a stride of about sqrt(T), time and
    memory grow as T^1.5. Two layers together can pass information between any two positions.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=StridedAttention(stride=128))

    Args:
        stride: The stride l in tokens, at least 1.

    Raises:
        ValueError: If `stride` is less than 1, or if a call has different numbers of queries and
            keys.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", §4.3.
    """

    needs_window = True
    stride: int

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
        size = fitting_size(self.stride, ops.shape(key)[2])
        if use_scale:
            query = query * (1.0 / math.sqrt(query.shape[-1]))
        queries, keys, values, marks = (
            split_blocks(x, size) for x in (query, key, value, key_marks(key, padding_mask))
        )
        near_keys, near_values, near_marks = (
            with_neighbours(x, use_causal_mask) for x in (keys, values, marks)
        )
        near = masked_scores(queries, near_keys, near_marks, self._near(size, use_causal_mask))
        # A column contains the positions that have the same remainder modulo the stride.
        columns = [ops.swapaxes(x, 2, 3) for x in (queries, keys, values, marks)]
        blocks = ops.arange(ops.shape(queries)[2])
        is_before = blocks[None, :] <= blocks[:, None] if use_causal_mask else None
        far = masked_scores(columns[0], columns[1], columns[3], is_before)
        scores = ops.concatenate([near, ops.swapaxes(far, 2, 3)], axis=-1)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        weights = weights if dropout is None else dropout(weights, training=training)
        count = near_keys.shape[3]
        far_weights = ops.swapaxes(weights[..., count:], 2, 3)
        heads = ops.matmul(weights[..., :count], near_values)
        heads = heads + ops.swapaxes(ops.matmul(far_weights, columns[2]), 2, 3)
        return join_blocks(heads, ops.shape(query)[2])

    def allows(self, query: Any, key: Any) -> Any:
        distance = query - key
        is_near = ops.abs(distance) <= self.stride
        return ops.logical_or(is_near, ops.equal(ops.mod(distance, self.stride), 0))

    def _near(self, size: Any, use_causal_mask: bool) -> Any:
        """Returns a bool mask, True at allowed distances of more than 0 and less than `size`.

        Without a causal mask, the mask compares absolute distances. A separate matrix product
        computes the scores at the distances 0, `size`, 2 `size`, and so on. `size` is the stride,
        or the length of the sequence if that is shorter or is not known yet (see `fitting_size`).
        """
        distance = neighbour_distances(size, use_causal_mask)
        farthest = ops.abs(distance) if not use_causal_mask else distance
        is_between = ops.logical_and(farthest > 0, farthest < size)
        return ops.logical_and(is_between, self.allows(distance, 0))
