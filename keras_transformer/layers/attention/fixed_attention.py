"""Self-attention to the own block and to the last positions of all blocks."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.attention_pattern import (
    AttentionPattern,
    attention_pattern,
    check_one_length,
    fitting_size,
    join_blocks,
    key_marks,
    masked_scores,
    sequence_start,
    split_blocks,
)


@attention_pattern("fixed")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class FixedAttention(AttentionPattern):
    """Attends to the query's own block and to the last positions of all other blocks.

    Blocks are counted from the first real token, so padding before a sequence changes nothing. The
    last positions of a block are its summary: they attend to their whole block, and all later
    positions attend to them. In every head, one softmax covers the own block and the summaries
    ("merged head" in Child et al.). Time and memory for a sequence of length T are proportional to
    T * (block_size + num_summaries * T / block_size). With a block size of about
    sqrt(num_summaries * T), time and memory grow as T^1.5.

    The pattern is made for causal attention to text and other data without a period, for which
    `StridedAttention` is made. Without a causal mask, positions also attend to the summaries of
    later blocks. The last block has no summary if it is too short, so earlier blocks do not attend
    to it.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FixedAttention(128))

    Args:
        block_size: Number l of positions in a block, at least 1.
        num_summaries: Number c of summary positions at the end of each block, from 1 to
            `block_size`. Defaults to `block_size // 16`, but at least 1.

    Raises:
        ValueError: If `block_size` is less than 1, if `num_summaries` is not from 1 to
            `block_size`, or if a call has different numbers of queries and keys.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", §4.3.
    """

    needs_window = True
    block_size: int
    num_summaries: int | None = None

    def __post_init__(self) -> None:
        check_sizes(block_size=self.block_size)
        check_sizes(num_summaries=self._summary_size)
        if self._summary_size > self.block_size:
            raise ValueError(
                "`num_summaries` must be at most `block_size`. "
                f"Received: num_summaries={self.num_summaries}, block_size={self.block_size}"
            )

    @property
    def _summary_size(self) -> int:
        default = max(1, self.block_size // 16)
        return default if self.num_summaries is None else self.num_summaries

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
        size = fitting_size(self.block_size, ops.shape(key)[2])
        if use_scale:
            query = query * (1.0 / math.sqrt(query.shape[-1]))
        start = None if padding_mask is None else sequence_start(padding_mask)
        queries, keys, values, marks = (
            split_blocks(_shift(x, start), size)
            for x in (query, key, value, key_marks(key, padding_mask))
        )
        scores = self._near_scores(queries, keys, marks, use_causal_mask)
        has_summaries = size == self.block_size  # A shorter sequence is a single block.
        if has_summaries:
            far = self._far_scores(queries, keys, marks, use_causal_mask)
            scores = ops.concatenate([scores, far], axis=-1)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        weights = weights if dropout is None else dropout(weights, training=training)
        heads = ops.matmul(weights[..., :size], values)
        if has_summaries:
            far = ops.matmul(_join(weights[..., size:]), self._summaries(values))
            heads = heads + ops.reshape(far, ops.shape(heads))
        heads = join_blocks(heads, ops.shape(query)[2])
        return _shift(heads, None if start is None else -start)

    def allows(self, query: Any, key: Any) -> Any:
        is_near = ops.equal(query // self.block_size, key // self.block_size)
        is_summary = ops.mod(key, self.block_size) >= self.block_size - self._summary_size
        return ops.logical_or(is_near, is_summary)

    def _near_scores(self, queries: Any, keys: Any, marks: Any, use_causal_mask: bool) -> Any:
        """Returns scores `(B, H, M, l, l)` of the keys of the own block."""
        positions = ops.arange(ops.shape(keys)[3], dtype="int32")
        # If JAX does not know the length, the whole sequence is here (see `fitting_size`).
        allowed = self.allows(positions[:, None], positions)
        if use_causal_mask:
            allowed = ops.logical_and(allowed, positions <= positions[:, None])
        return masked_scores(queries, keys, marks, allowed)

    def _summaries(self, blocks: Any) -> Any:
        """Joins the last c positions of the blocks `(B, H, M, l, K)`: `(B, H, M * c, K)`."""
        return _join(blocks[:, :, :, self.block_size - self._summary_size :])

    def _far_scores(self, queries: Any, keys: Any, marks: Any, use_causal_mask: bool) -> Any:
        """Returns scores `(B, H, M, l, M * c)` of the summaries of other blocks."""
        keys, marks = self._summaries(keys), self._summaries(marks)
        joined = _join(queries)
        # No `ops.repeat`: Keras cannot infer its shape on PyTorch, and would compute with 83 rows.
        of_queries, of_keys = (
            ops.arange(ops.shape(x)[2], dtype="int32") // size
            for x, size in ((joined, self.block_size), (keys, self._summary_size))
        )
        of_queries = of_queries[:, None]
        is_other = of_keys < of_queries if use_causal_mask else ops.not_equal(of_keys, of_queries)
        scores = masked_scores(joined, keys, marks, is_other)
        return ops.reshape(scores, (*ops.shape(queries)[:4], ops.shape(keys)[2]))


def _join(blocks: Any) -> Any:
    """Joins the blocks `(B, H, M, b, K)`: `(B, H, M * b, K)`."""
    return join_blocks(blocks, None)


def _shift(x: Any, start: Any) -> Any:
    """Rotates each sequence of `x` `(B, H, T, K)`, so that position `start` `(B, 1)` is first."""
    if start is None:
        return x
    length = ops.shape(x)[2]
    positions = ops.mod(ops.arange(length, dtype="int32") + start, length)
    return ops.take_along_axis(x, positions[:, None, :, None], axis=2)
