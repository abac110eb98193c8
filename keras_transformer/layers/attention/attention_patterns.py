"""Attention patterns for long sequences: a base class, a registry of names, and the patterns."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from keras import ops

from keras_transformer._backend.gradient_checkpointing import remat
from keras_transformer._backend.operations import attend
from keras_transformer._backend.types import Mask, Size, Tensor
from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    both_masks,
    scaled_dot_product_attention,
)
from keras_transformer.layers.base import Registry
from keras_transformer.layers.dropout import Dropout

ATTENTION_PATTERNS = Registry("attention_pattern")  # subclasses of `AttentionPattern`
attention_pattern = ATTENTION_PATTERNS.register
SMALLEST_BLOCK = 64


def new_attention_pattern(name: Any, window: int | None) -> Any:
    """Creates the pattern of a registered name, a list of patterns for a list, or None for None.

    `window` is the window, stride or block size in tokens, for patterns that have one.
    """
    name = None if name == [] else name
    names = name if isinstance(name, list) else [name]
    classes = [each and ATTENTION_PATTERNS[each][0] for each in names]
    if any(each and each.needs_window for each in classes) != (window is not None):
        raise ValueError(
            "`attention_window` is required for patterns with a window, stride or block size, and "
            "must be None for all other patterns. "
            f"Received: attention_pattern={name!r}, attention_window={window}"
        )
    patterns = [each and (each(window) if each.needs_window else each()) for each in classes]
    return patterns if isinstance(name, list) else patterns[0]


class AttentionPattern:
    """Base class of attention patterns. They let `MultiHeadAttention` process long sequences (§4).

    A pattern says by positions which keys a query attends to, and computes attention without
    storing the scores of all pairs. It has no weights, so the weights of a `MultiHeadAttention` fit
    any pattern. Each pattern is a dataclass whose fields are sizes in tokens, at least 1. Padding
    before a sequence changes no result. A subclass defines `allows`, and `heads`. If it has a
    window, stride or block size, this is its first field, without a default, and `needs_window` is
    True.

    Call arguments:
        query, key, value: float tensors `(B, H, T, K)`, `(B, H, S, K)` and `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.
        dropout: `Dropout` layer for the attention weights. Defaults to None.
        training: Whether to apply dropout. Defaults to False.

    Returns:
        A float tensor `(B, H, T, K_v)`, finite even for queries whose keys are all masked.
    """

    needs_window = False

    def __post_init__(self) -> None:
        check_sizes(**self.get_config())

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding_mask: Mask | None = None,
        use_causal_mask: bool = False,
        use_scale: bool = True,
        dropout: Dropout | None = None,
        training: bool = False,
    ) -> Any:
        check_mask_length(padding_mask, key.shape[2])
        if use_scale:
            query = query * (1.0 / math.sqrt(query.shape[-1]))
        dropout = dropout if training and dropout is not None and dropout.rate else None
        return self.heads(query, key, value, padding_mask, use_causal_mask, dropout)

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        """Computes the call for a scaled `query`. `mask` is the padding mask or None."""
        raise NotImplementedError

    def allows(self, query: Tensor, key: Any) -> Any:
        """Returns a bool tensor, True where the pattern lets a query attend to a key.

        Both are int tensors of positions that broadcast. The first real token has position 0.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttentionPattern":
        return cls(**config)


@attention_pattern("full")
@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Attends to all positions (§3.2.1). Memory is linear in the sequence length.

    `MultiHeadAttention` gives the same result with this pattern as without a pattern. On PyTorch, a
    fused kernel is used, unless weights are dropped or both masks are given. Otherwise, the result
    is computed for one block of queries at a time, and the backward pass recomputes the scores of
    each block. The time is quadratic in the sequence length.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FullAttention())

    Args:
        block_size: Number of queries per block, at least 1. Defaults to 512.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; Dao et al. 2022,
    "FlashAttention".
    """

    block_size: int = 512

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        # The kernel would need a mask for all pairs of query and key if both masks are given.
        if dropout is None and not (is_causal and mask is not None):
            heads = attend(query, key, value, mask, is_causal, use_scale=False)
            if heads is not None:
                return heads
        if query.shape[2] == 0:
            return ops.zeros((*ops.shape(query)[:3], value.shape[-1]), value.dtype)
        queries = split_blocks(query, fitting_size(self.block_size, ops.shape(query)[2]))
        count, size = ops.shape(queries)[2:4]

        def heads_of(block: Size, queries: Tensor, seed: Tensor, key: Tensor, value: Tensor) -> Any:
            allowed = None
            if is_causal:
                rows = ops.arange(size, dtype="int32") + block * size
                allowed = ops.arange(ops.shape(key)[2], dtype="int32") <= rows[:, None]
            if mask is not None:
                allowed = both_masks(allowed, mask[:, None, None, :])
            drop = dropout and partial(dropout.drop, seed=seed)
            options: dict[str, Any] = {"use_scale": False, "dropout": drop}
            return scaled_dot_product_attention(queries, key, value, allowed, **options)[0]

        recomputed, blocks = remat(heads_of), ops.arange(count, dtype="int32")
        first = ops.zeros((2,), "int32") if dropout is None else dropout.next_seed()
        seeds = first + blocks[:, None] * ops.arange(1, -1, -1, dtype="int32")
        given = blocks, ops.moveaxis(queries, 2, 0), seeds
        heads = ops.map(lambda xs: recomputed(*xs, key, value), given)
        return join_blocks(ops.moveaxis(heads, 0, 2), ops.shape(query)[2])

    def allows(self, query: Tensor, key: Any) -> Any:
        return ops.ones_like(query - key, dtype="bool")


@attention_pattern("local")
@dataclass(frozen=True)
class LocalAttention(AttentionPattern):
    """Attends to positions at most `window` positions away (restricted self-attention, §4).

    The queries of a block of at least 64 positions are multiplied by the keys of this block and of
    the neighbouring blocks. Time and memory are proportional to the sequence length times `window`.
    In each layer, information moves by at most `window` positions.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=LocalAttention(window=128))

    Args:
        window: Largest distance in tokens between query and key, at least 1 (r in the paper). The
            window covers earlier and later keys. A causal mask excludes all later keys.

    Source: Vaswani et al. 2017, §4, "restricted self-attention".
    """

    window: int
    needs_window = True

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        check_self_attention(self, query, key)
        size = fitting_size(max(self.window, SMALLEST_BLOCK), ops.shape(key)[2])
        marks = key_marks(mask, key)
        queries, *blocks = (split_blocks(x, size) for x in (query, key, value, marks))
        keys, values, marks = (with_neighbours(x, is_causal) for x in blocks)
        distance = neighbour_distances(ops.shape(queries)[3], is_causal)
        allowed = ops.logical_and(distance >= 0, self.allows(distance, 0))
        allowed = ops.logical_and(allowed, ops.swapaxes(marks, -1, -2))
        drop = dropout and partial(dropout, training=True)
        options: dict[str, Any] = {"use_scale": False, "dropout": drop}
        heads, _ = scaled_dot_product_attention(queries, keys, values, allowed, **options)
        return join_blocks(heads, ops.shape(query)[2])

    def allows(self, query: Tensor, key: Any) -> Any:
        return ops.abs(query - key) <= self.window


def check_self_attention(pattern: AttentionPattern, query: Tensor, key: Tensor) -> None:
    """Raises `ValueError` if the numbers of queries and keys are known and differ."""
    if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{type(pattern).__name__} is for self-attention: the numbers of queries and keys "
            f"must be equal. Received: {query.shape[2]} queries, {key.shape[2]} keys"
        )


def fitting_size(size: int, length: Size) -> Any:
    """Returns the number of positions per block: `size`, or `length` if the sequence is shorter.

    When JAX infers shapes, `length` is a symbol. The whole sequence then is one block.
    """
    if isinstance(length, int):
        return max(1, min(size, length))
    return size if ops.is_tensor(length) else length


def split_blocks(x: Tensor, size: Size) -> Any:
    """Splits `x` `(B, H, T, K)` into M blocks `(B, H, M, size, K)`. Zero-pads the last block."""
    batch, heads, length, width = ops.shape(x)
    # A symbolic length is that of a single block (see `fitting_size`).
    added = -length % size if isinstance(length, int) or ops.is_tensor(length) else 0
    x = ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
    return ops.reshape(x, (batch, heads, (length + added) // size, size, width))


def join_blocks(blocks: Tensor, length: Size = None) -> Any:
    """Joins M blocks `(B, H, M, b, K)` to a sequence `(B, H, length, K)`, of M * b by default."""
    batch, heads, count, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (batch, heads, count * size, width))[:, :, :length]


def with_neighbours(blocks: Tensor, use_causal_mask: bool) -> Any:
    """Joins each block with the one before it and, without a causal mask, the one after it.

    Blocks `(B, H, M, b, K)` give `(B, H, M, 2 b, K)` or `(B, H, M, 3 b, K)`, where missing blocks
    are zeros.
    """
    sides = 2 if use_causal_mask else 3
    padded = ops.pad(blocks, [(0, 0), (0, 0), (1, sides - 2), (0, 0), (0, 0)])
    shape = ops.shape(blocks)
    parts = [ops.slice(padded, (0, 0, start, 0, 0), shape) for start in range(sides)]
    return ops.concatenate(parts, axis=3)


def neighbour_distances(size: Size, use_causal_mask: bool) -> Any:
    """Returns the distances of queries and keys, int32 `(b, 2 b)` or `(b, 3 b)`.

    The queries are those of one block of b = `size`, and the keys those of `with_neighbours`. With
    a causal mask, the distance of a later key is negative.
    """
    keys = ops.arange(-size, size if use_causal_mask else 2 * size, dtype="int32")
    distance = ops.arange(size, dtype="int32")[:, None] - keys
    return distance if use_causal_mask else ops.abs(distance)


def key_marks(padding_mask: Mask | None, key: Tensor) -> Any:
    """Returns a padding mask `(B, S)` as `(B, 1, S, 1)`, so that it is split like the keys.

    The zeros that `split_blocks` adds to keys and marks therefore count as padding. None means that
    all tokens are real.
    """
    if padding_mask is None:
        padding_mask = ops.ones_like(key[:, 0, :, 0], dtype="bool")
    return ops.cast(padding_mask, "bool")[:, None, :, None]


def sequence_start(padding_mask: Mask) -> Any:
    """Returns the position of the first token of a mask `(..., S)`, int32 `(..., 1)`, at most S."""
    seen = ops.cumsum(ops.cast(padding_mask, "int32"), axis=-1)
    return ops.sum(ops.cast(ops.equal(seen, 0), "int32"), axis=-1, keepdims=True)


def check_mask_length(padding_mask: Mask | None, num_keys: Size) -> None:
    """Raises `ValueError` if the length of the mask and the number of keys are known and differ."""
    if padding_mask is None or not isinstance(num_keys, int):
        return
    if isinstance(padding_mask.shape[1], int) and padding_mask.shape[1] != num_keys:
        raise ValueError(
            "`padding_mask` must have as many columns as there are keys. "
            f"Received: shape={tuple(padding_mask.shape)}, {num_keys} keys"
        )
