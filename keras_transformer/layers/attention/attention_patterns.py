"""Attention patterns for long sequences: a base class, a registry of names, and the patterns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import remat
from keras_transformer._backend.operations import MASKED_SCORE, attend, scalar
from keras_transformer.errors import check_sizes

ATTENTION_PATTERNS: dict[str, Any] = {}  # classes by their names
SMALLEST_BLOCK = 64

# The scores `(..., T, n)` of n keys, and a function that multiplies weights of this shape by the
# values of these keys.
Group = tuple[Any, Callable[[Any], Any]]


def attention_pattern(name: str) -> Callable[[type], type]:
    """Returns a decorator that registers a subclass of `AttentionPattern` under `name`.

    Keras registers the class, too, so that saved layers with the pattern can be loaded.
    """

    def register(pattern: type) -> type:
        ATTENTION_PATTERNS[name] = pattern
        keras.saving.register_keras_serializable(package="keras_transformer")(pattern)
        return pattern

    return register


def new_attention_pattern(name: Any, window: int | None) -> Any:
    """Creates the pattern of a registered name, a list of patterns for a list, or None for None.

    `window` is the window, stride or block size in tokens, for patterns that have one.
    """
    names = name if isinstance(name, list) else [name]
    known = [None, *ATTENTION_PATTERNS]
    if not names or not all(each in known for each in names):
        raise ValueError(
            f"`attention_pattern` must be None, one of {known[1:]}, or a list of these. "
            f"Received: attention_pattern={name!r}"
        )
    classes = [ATTENTION_PATTERNS.get(each) for each in names]
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
    before a sequence changes no result. A subclass defines `allows`, and `heads`.

    Call arguments:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.
        dropout: `Dropout` layer for the attention weights. Defaults to None.
        training: Whether to apply dropout. Defaults to False.

    Returns:
        A float tensor `(B, H, T, K_v)`, finite even for queries whose keys are all masked.

    Raises:
        ValueError: If `padding_mask` has another number of columns than there are keys.

    Attributes:
        needs_window: Whether the pattern has a window, stride or block size. It must be the
            dataclass's first field and must have no default.
    """

    needs_window = False

    def __post_init__(self) -> None:
        check_sizes(**self.get_config())

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
        check_mask_length(padding_mask, key.shape[2])
        if use_scale:
            query = query * (1.0 / math.sqrt(query.shape[-1]))
        dropout = dropout if training and dropout is not None and dropout.rate else None
        return self.heads(query, key, value, padding_mask, use_causal_mask, dropout)

    def heads(
        self, query: Any, key: Any, value: Any, padding_mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        """Computes the call for a scaled `query`. `dropout` is None if nothing is dropped."""
        raise NotImplementedError

    def allows(self, query: Any, key: Any) -> Any:
        """Returns a bool tensor, True where the pattern lets a query attend to a key.

        Args:
            query: int tensor, the positions of queries. The first real token has position 0.
            key: int tensor, the positions of keys. Its shape must broadcast to that of `query`.
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
    fused kernel computes the result without storing the scores, unless weights are dropped or both
    masks are given. Otherwise, the result is computed for one block of queries at a time, and the
    backward pass recomputes the scores of each block. The time is quadratic in the sequence length.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FullAttention())

    Args:
        block_size: Number of queries per block, at least 1. Defaults to 512.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; Dao et al. 2022,
    "FlashAttention".
    """

    block_size: int = 512

    def heads(
        self, query: Any, key: Any, value: Any, padding_mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        # The kernel would need a mask for all pairs of query and key if both masks are given.
        if dropout is None and not (is_causal and padding_mask is not None):
            heads = attend(query, key, value, padding_mask, is_causal, use_scale=False)
            if heads is not None:
                return heads
        if query.shape[2] == 0:
            return ops.zeros((*ops.shape(query)[:3], value.shape[-1]), value.dtype)
        queries = split_blocks(query, fitting_size(self.block_size, ops.shape(query)[2]))
        count, size = ops.shape(queries)[2:4]
        marks = None if padding_mask is None else key_marks(padding_mask)

        def heads_of(block: Any, queries: Any, seed: Any, key: Any, value: Any) -> Any:
            allowed = None
            if is_causal:
                rows = ops.arange(size, dtype="int32") + block * size
                allowed = ops.arange(ops.shape(key)[2], dtype="int32") <= rows[:, None]
            scores, multiply = _group(allowed, queries, key, value, marks)
            weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
            return multiply(weights if dropout is None else dropout.drop(weights, seed))

        recomputed, blocks = remat(heads_of), ops.arange(count, dtype="int32")
        first = ops.zeros((2,), "int32") if dropout is None else dropout.next_seed()
        seeds = first + blocks[:, None] * ops.arange(1, -1, -1, dtype="int32")
        given = blocks, ops.moveaxis(queries, 2, 0), seeds
        heads = ops.map(lambda xs: recomputed(*xs, key, value), given)
        return join_blocks(ops.moveaxis(heads, 0, 2), ops.shape(query)[2])

    def allows(self, query: Any, key: Any) -> Any:
        return ops.ones_like(query - key, dtype="bool")


class BlockPattern(AttentionPattern):
    """Base class of sparse patterns for self-attention, which split the sequence into blocks.

    One softmax covers the scores of all groups of keys that a subclass returns.
    """

    needs_window = True

    def heads(
        self, query: Any, key: Any, value: Any, padding_mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
            raise ValueError(
                f"{type(self).__name__} is for self-attention: the numbers of queries and keys "
                f"must be equal. Received: {query.shape[2]} queries, {key.shape[2]} keys"
            )
        if padding_mask is None:
            padding_mask = ops.ones_like(key[:, 0, :, 0], dtype="bool")
        size = fitting_size(self.largest_block, ops.shape(key)[2])
        parts = (query, key, value, key_marks(padding_mask))
        groups = self._groups(is_causal, *(split_blocks(x, size) for x in parts))
        scores = ops.concatenate([scores for scores, _ in groups], axis=-1)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        weights = weights if dropout is None else dropout(weights, training=True)
        num_near = ops.shape(groups[0][0])[-1]
        heads = groups[0][1](weights[..., :num_near])
        if len(groups) == 2:
            heads = heads + groups[1][1](weights[..., num_near:])
        return join_blocks(heads, ops.shape(query)[2])

    @property
    def largest_block(self) -> int:
        """Number of positions of a block, if the sequence is not shorter."""
        return int(next(iter(self.get_config().values())))

    def _groups(self, use_causal_mask: bool, queries: Any, *keys: Any) -> list[Group]:
        """Returns one or two groups of keys: the near keys, and possibly the far keys.

        Queries are `(B, H, M, b, K)`. `keys` are the keys of this shape, the values
        `(B, H, M, b, K_v)`, and the marks `(B, 1, M, b, 1)` (see `key_marks`).
        """
        raise NotImplementedError


def _group(allowed: Any, queries: Any, keys: Any, values: Any, marks: Any) -> Group:
    """Returns the scores of `keys` `(..., n, K)`. `marks` and `allowed` may be None."""
    scores = ops.cast(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), "float32")
    for mask in (allowed, None if marks is None else ops.swapaxes(marks, -1, -2)):
        if mask is not None:
            scores = ops.where(mask, scores, scalar(MASKED_SCORE, scores.dtype))
    return scores, lambda weights: ops.matmul(weights, values)


def _rearranged(group: Group, inward: Callable[[Any], Any], outward: Callable[[Any], Any]) -> Group:
    """Returns a group in another arrangement: `outward` rearranges, `inward` is the inverse."""
    scores, multiply = group
    return outward(scores), lambda weights: outward(multiply(inward(weights)))


@attention_pattern("local")
@dataclass(frozen=True)
class LocalAttention(BlockPattern):
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

    @property
    def largest_block(self) -> int:
        return max(self.window, SMALLEST_BLOCK)

    def _groups(self, use_causal_mask: bool, queries: Any, *keys: Any) -> list[Group]:
        distance = neighbour_distances(ops.shape(queries)[3], use_causal_mask)
        allowed = ops.logical_and(distance >= 0, self.allows(distance, 0))
        return [_group(allowed, queries, *(with_neighbours(x, use_causal_mask) for x in keys))]

    def allows(self, query: Any, key: Any) -> Any:
        return ops.abs(query - key) <= self.window


@attention_pattern("strided")
@dataclass(frozen=True)
class StridedAttention(BlockPattern):
    """Attends to neighbours and to positions whose distance is a multiple of the stride.

    Neighbours are at most `stride` positions away. In every head, one softmax covers neighbours and
    distant positions ("merged head" in Child et al.). Time and memory for a sequence of length T
    are proportional to T * (3 * stride + T / stride). With a stride of about sqrt(T), time and
    memory grow as T^1.5. Two layers together can pass information between any two positions.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=StridedAttention(stride=128))

    Args:
        stride: The stride l in tokens, at least 1.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", §4.3.
    """

    stride: int

    def _groups(self, use_causal_mask: bool, queries: Any, *keys: Any) -> list[Group]:
        size = ops.shape(queries)[3]
        distance = neighbour_distances(size, use_causal_mask)
        # The far keys include those at the distances 0 and `size`.
        allowed = ops.logical_and(distance > 0, distance < size)
        allowed = ops.logical_and(allowed, self.allows(distance, 0))
        near = _group(allowed, queries, *(with_neighbours(x, use_causal_mask) for x in keys))
        # A column contains the positions that have the same remainder modulo the stride.
        blocks = ops.arange(ops.shape(queries)[2])
        is_before = blocks[None, :] <= blocks[:, None] if use_causal_mask else None
        far = _group(is_before, *(_columns(x) for x in (queries, *keys)))
        return [near, _rearranged(far, _columns, _columns)]

    def allows(self, query: Any, key: Any) -> Any:
        distance = query - key
        is_near = ops.abs(distance) <= self.stride
        return ops.logical_or(is_near, ops.equal(ops.mod(distance, self.stride), 0))


def _columns(blocks: Any) -> Any:
    return ops.swapaxes(blocks, 2, 3)


@attention_pattern("fixed")
@dataclass(frozen=True)
class FixedAttention(BlockPattern):
    """Attends to the query's own block and to the last positions of all other blocks.

    Blocks are counted from the first real token. The last positions of a block are its summary:
    they attend to their whole block, and all later positions attend to them. In every head, one
    softmax covers the own block and the summaries ("merged head" in Child et al.). Time and memory
    for a sequence of length T are proportional to T * (block_size + num_summaries * T /
    block_size). With a block size of about sqrt(num_summaries * T), they grow as T^1.5.

    The pattern is made for causal attention to text and other data without a period, for which
    `StridedAttention` is made. Without a causal mask, positions also attend to the summaries of
    later blocks. The last block has no summary if it is too short.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FixedAttention(128))

    Args:
        block_size: Number l of positions in a block, at least 1.
        num_summaries: Number c of summary positions at the end of each block, from 1 to
            `block_size`. Defaults to `block_size // 16`, but at least 1.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", §4.3.
    """

    block_size: int
    num_summaries: int | None = None

    def __post_init__(self) -> None:
        check_sizes(block_size=self.block_size, num_summaries=self._summary_size)
        if self._summary_size > self.block_size:
            raise ValueError(
                "`num_summaries` must be at most `block_size`. "
                f"Received: num_summaries={self.num_summaries}, block_size={self.block_size}"
            )

    @property
    def _summary_size(self) -> int:
        default = max(1, self.block_size // 16)
        return default if self.num_summaries is None else self.num_summaries

    def heads(
        self, query: Any, key: Any, value: Any, padding_mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        if padding_mask is None:
            return super().heads(query, key, value, None, is_causal, dropout)
        start = sequence_start(padding_mask)
        query, key, value = (_rotate(x, start) for x in (query, key, value))
        padding_mask = _rotate(padding_mask[:, None, :, None], start)[:, 0, :, 0]
        return _rotate(super().heads(query, key, value, padding_mask, is_causal, dropout), -start)

    def _groups(self, use_causal_mask: bool, queries: Any, *keys: Any) -> list[Group]:
        size = ops.shape(queries)[3]
        positions = ops.arange(size, dtype="int32")
        # If JAX does not know the length, the whole sequence is here (see `fitting_size`).
        allowed = self.allows(positions[:, None], positions)
        if use_causal_mask:
            allowed = ops.logical_and(allowed, positions <= positions[:, None])
        near = _group(allowed, queries, *keys)
        if size != self.block_size:  # A shorter sequence is a single block.
            return [near]
        # The last c positions of the blocks `(B, H, M, l, K)`, as `(B, H, M * c, K)`.
        summaries = [join_blocks(x[:, :, :, size - self._summary_size :]) for x in keys]
        # No `ops.repeat`: Keras cannot infer its shape on PyTorch, and would compute with 83 rows.
        joined = join_blocks(queries)
        of_queries = ops.arange(ops.shape(joined)[2], dtype="int32")[:, None] // size
        of_keys = ops.arange(ops.shape(summaries[0])[2], dtype="int32") // self._summary_size
        is_other = of_keys < of_queries if use_causal_mask else ops.not_equal(of_keys, of_queries)

        def blocks(x: Any) -> Any:
            return ops.reshape(x, (*ops.shape(queries)[:4], ops.shape(x)[-1]))

        return [near, _rearranged(_group(is_other, joined, *summaries), join_blocks, blocks)]

    def allows(self, query: Any, key: Any) -> Any:
        is_near = ops.equal(query // self.block_size, key // self.block_size)
        is_summary = ops.mod(key, self.block_size) >= self.block_size - self._summary_size
        return ops.logical_or(is_near, is_summary)


def _rotate(x: Any, start: Any) -> Any:
    """Rotates each sequence of `x` `(B, H, T, K)`, so that position `start` `(B, 1)` is first."""
    length = ops.shape(x)[2]
    positions = ops.mod(ops.arange(length, dtype="int32") + start, length)
    return ops.take_along_axis(x, positions[:, None, :, None], axis=2)


def fitting_size(size: int, length: Any) -> Any:
    """Returns the number of positions per block: `size`, or `length` if the sequence is shorter.

    When JAX infers shapes, `length` is a symbol. The whole sequence then is one block.
    """
    if isinstance(length, int):
        return max(1, min(size, length))
    return size if ops.is_tensor(length) else length


def split_blocks(x: Any, size: Any) -> Any:
    """Splits `x` `(B, H, T, K)` into M blocks `(B, H, M, size, K)`. Zero-pads the last block."""
    batch, heads, length, width = ops.shape(x)
    # A symbolic length is that of a single block (see `fitting_size`).
    added = -length % size if isinstance(length, int) or ops.is_tensor(length) else 0
    x = ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
    return ops.reshape(x, (batch, heads, (length + added) // size, size, width))


def join_blocks(blocks: Any, length: Any = None) -> Any:
    """Joins M blocks `(B, H, M, b, K)` to a sequence `(B, H, length, K)`, of M * b by default."""
    batch, heads, count, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (batch, heads, count * size, width))[:, :, :length]


def with_neighbours(blocks: Any, use_causal_mask: bool) -> Any:
    """Joins each block with the block before it and, without a causal mask, the block after it.

    Blocks `(B, H, M, b, K)` give `(B, H, M, 2 b, K)` or `(B, H, M, 3 b, K)`. Zeros replace the
    missing blocks.
    """
    sides = 2 if use_causal_mask else 3
    padded = ops.pad(blocks, [(0, 0), (0, 0), (1, sides - 2), (0, 0), (0, 0)])
    shape = ops.shape(blocks)
    parts = [ops.slice(padded, (0, 0, start, 0, 0), shape) for start in range(sides)]
    return ops.concatenate(parts, axis=3)


def neighbour_distances(size: Any, use_causal_mask: bool) -> Any:
    """Returns the distances of queries and keys, int32 `(b, 2 b)` or `(b, 3 b)`.

    The queries are those of one block of b = `size`, and the keys those of `with_neighbours`. With
    a causal mask, the distance of a later key is negative.
    """
    keys = ops.arange(-size, size if use_causal_mask else 2 * size, dtype="int32")
    distance = ops.arange(size, dtype="int32")[:, None] - keys
    return distance if use_causal_mask else ops.abs(distance)


def key_marks(padding_mask: Any) -> Any:
    """Returns a padding mask `(B, S)` as `(B, 1, S, 1)`, so that it is split like the keys.

    The zeros that `split_blocks` adds to keys and marks therefore count as padding.
    """
    return ops.cast(padding_mask, "bool")[:, None, :, None]


def sequence_start(padding_mask: Any) -> Any:
    """Returns the position of the first token of a mask `(..., S)`, int32 `(..., 1)`, at most S."""
    seen = ops.cumsum(ops.cast(padding_mask, "int32"), axis=-1)
    return ops.sum(ops.cast(ops.equal(seen, 0), "int32"), axis=-1, keepdims=True)


def check_mask_length(padding_mask: Any, num_keys: Any) -> None:
    """Raises `ValueError` if the length of the mask and the number of keys are known and differ."""
    length = None if padding_mask is None else padding_mask.shape[1]
    if isinstance(length, int) and isinstance(num_keys, int) and length != num_keys:
        raise ValueError(
            "`padding_mask` must have as many columns as there are keys. "
            f"Received: shape={tuple(padding_mask.shape)}, {num_keys} keys"
        )
