"""Sparse self-attention, computed in blocks: local and strided."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.attention_pattern import (
    AttentionPattern,
    attention_pattern,
    fitting_size,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    MASKED_SCORE,
    scaled_dot_product_attention,
)

SMALLEST_BLOCK = 64


@attention_pattern("local")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class LocalAttention(AttentionPattern):
    """Attends to positions at most `window` positions away: restricted self-attention (§4).

    The sequence is split into blocks of `window` positions, or of 64 if `window` is smaller. The
    queries of a block are multiplied by the keys of this block and of the two neighbouring blocks.
    Time and memory are linear in length and window. Information moves `window` positions per layer.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=LocalAttention(window=128))

    Args:
        window: Largest distance r in tokens, at least 1. It applies to both sides; with a causal
            mask, only to earlier positions.

    Raises:
        ValueError: If `window` is less than 1, or, in a call, the numbers of queries and keys
            differ.

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
        allowed = self.allows(distance)
        if use_causal_mask:
            allowed = ops.logical_and(allowed, distance >= 0)
        heads, _ = scaled_dot_product_attention(
            split_blocks(query, size),
            keys,
            values,
            attention_mask=ops.logical_and(allowed, ops.swapaxes(marks, -1, -2) > 0),
            use_scale=use_scale,
            dropout=dropout,
        )
        return join_blocks(heads, ops.shape(query)[2])

    def allows(self, distance: Any) -> Any:
        return ops.abs(distance) <= self.window


@attention_pattern("strided")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class StridedAttention(AttentionPattern):
    """Attends to neighbours and to positions whose distance is a multiple of the stride.

    Neighbours are at most `stride` positions away. In every head, one softmax covers both kinds of
    keys ("merged head" in Child et al.). Time and memory for a sequence of length T are
    proportional to T * (3 * stride + T / stride), which is T^1.5 if the stride is about sqrt(T).
    Two layers can pass information between any two positions.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=StridedAttention(stride=128))

    Args:
        stride: The stride l in tokens, at least 1.

    Raises:
        ValueError: If `stride` is less than 1, or, in a call, the numbers of queries and keys
            differ.

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
        near = _masked_scores(queries, near_keys, near_marks, _is_near(size, use_causal_mask))
        # A column contains the positions that have the same remainder modulo the stride.
        columns = [ops.swapaxes(x, 2, 3) for x in (queries, keys, values, marks)]
        blocks = ops.arange(ops.shape(queries)[2])
        is_before = blocks[None, :] <= blocks[:, None] if use_causal_mask else None
        far = _masked_scores(columns[0], columns[1], columns[3], is_before)
        scores = ops.concatenate([near, ops.swapaxes(far, 2, 3)], axis=-1)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        weights = weights if dropout is None else dropout(weights)
        count = near_keys.shape[3]
        far_weights = ops.swapaxes(weights[..., count:], 2, 3)
        heads = ops.matmul(weights[..., :count], near_values)
        heads = heads + ops.swapaxes(ops.matmul(far_weights, columns[2]), 2, 3)
        return join_blocks(heads, ops.shape(query)[2])

    def allows(self, distance: Any) -> Any:
        is_near = ops.abs(distance) <= self.stride
        return ops.logical_or(is_near, ops.equal(ops.mod(distance, self.stride), 0))


def _is_near(stride: Any, use_causal_mask: bool) -> Any:
    """Returns True for keys of `with_neighbours` that are neighbours in another column."""
    distance = neighbour_distances(stride, use_causal_mask)
    farthest = ops.abs(distance) if not use_causal_mask else distance
    return ops.logical_and(farthest > 0, farthest < stride)


def _masked_scores(queries: Any, keys: Any, marks: Any, allowed: Any) -> Any:
    """Computes float32 scores `(..., T, S)` of queries `(..., T, K)` and keys `(..., S, K)`."""
    scores = ops.cast(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), "float32")
    mask = ops.swapaxes(marks, -1, -2) > 0
    if allowed is not None:
        mask = ops.logical_and(mask, allowed)
    return ops.where(mask, scores, MASKED_SCORE)


def split_blocks(x: Any, size: Any) -> Any:
    """Splits `(B, H, T, K)`, padded with zeros, into blocks: `(B, H, T / size, size, K)`."""
    batch, heads, length, width = ops.shape(x)
    # A symbolic length equals the size of the single block (see `fitting_size`).
    added = -length % size if isinstance(length, int) or ops.is_tensor(length) else 0
    x = ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
    return ops.reshape(x, (batch, heads, (length + added) // size, size, width))


def join_blocks(blocks: Any, length: Any) -> Any:
    """Joins blocks `(B, H, M, b, K)` to a sequence `(B, H, length, K)`."""
    batch, heads, count, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (batch, heads, count * size, width))[:, :, :length]


def with_neighbours(blocks: Any, use_causal_mask: bool) -> Any:
    """Joins each block with the previous one and, if not causal, with the next one.

    The shape `(B, H, M, b, K)` becomes `(B, H, M, 2 b, K)` if causal, otherwise
    `(B, H, M, 3 b, K)`. The missing neighbours of the first and the last block are zeros.
    """
    sides = 2 if use_causal_mask else 3
    padded = ops.pad(blocks, [(0, 0), (0, 0), (1, sides - 2), (0, 0), (0, 0)])
    shape = ops.shape(blocks)
    parts = [ops.slice(padded, (0, 0, start, 0, 0), shape) for start in range(sides)]
    return ops.concatenate(parts, axis=3)


def neighbour_distances(size: Any, use_causal_mask: bool) -> Any:
    """Returns query minus key positions for `with_neighbours`, int32 `(b, 2 b)` or `(b, 3 b)`."""
    keys = ops.arange(-size, size if use_causal_mask else 2 * size, dtype="int32")
    return ops.arange(size, dtype="int32")[:, None] - keys


def key_marks(key: Any, padding_mask: Any) -> Any:
    """Returns marks of the keys, int32 `(B, 1, S, 1)`, 1 where a key is a real token.

    `split_blocks` pads the marks with 0, so that keys that pad the sequence are masked too.
    """
    if padding_mask is None:
        padding_mask = ops.ones((ops.shape(key)[0], ops.shape(key)[2]), "bool")
    return ops.cast(padding_mask, "int32")[:, None, :, None]


def check_one_length(query: Any, key: Any, pattern: Any) -> None:
    """Raises `ValueError` if the numbers of queries and keys are known and differ."""
    if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(pattern).__name__} is for self-attention: the numbers of queries and keys must "
            f"be equal. Received: {query.shape[2]} queries, {key.shape[2]} keys"
        )
