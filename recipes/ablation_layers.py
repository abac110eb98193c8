"""Position encodings, attention patterns and a norm that only comparisons use.

`import ablation_layers` registers them, so that recipes, models and `.keras` files can have them:
the position encodings "index", "normalized_index" and "binary", each also with the suffix
"_concatenated", the attention patterns "strided" and "fixed", and the normalization "batch".

`ablations.py` measures the position encodings and the norm, and docs/explanation/positions.md
explains the encodings.
`shakespeare_sparse.py` measures the attention patterns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import Recomputable
from keras_transformer._backend.operations import MASKED_SCORE
from keras_transformer.errors import check_sizes
from keras_transformer.layers import AttentionPattern, PositionalEncoding
from keras_transformer.layers.attention.attention_patterns import (
    attention_pattern,
    check_self_attention,
    fitting_size,
    join_blocks,
    key_marks,
    neighbour_distances,
    sequence_start,
    split_blocks,
    with_neighbours,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import both_masks
from keras_transformer.layers.base import Dense, given_mask
from keras_transformer.layers.normalization import normalization
from keras_transformer.layers.positions.positional_encoding import position_encoding, positions

# 1. Position encodings that are worse than sinusoids.


@position_encoding("index")
@position_encoding("index_concatenated", concatenate=True)
class IndexPositionalEncoding(PositionalEncoding):
    """Encodes positions as the numbers 0, 1, 2, and so on, which may outweigh the embeddings.

    Example:

    >>> IndexPositionalEncoding(concatenate=True)(np.zeros((1, 50, 64), "float32"))

    Args:
        concatenate: If False, the index is added to every feature of the embedding. If True, the
            index is appended to the embedding as another feature, and a learned matrix projects
            the result back to width D. Defaults to False.
    """

    num_features = 1  # number of features that encode a position

    def __init__(self, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.concatenate = concatenate

    def build(self, input_shape: Any) -> None:
        if self.concatenate:
            width, options = input_shape[-1], {"dtype": self.dtype_policy, "name": "projection"}
            self.projection = Dense(width, use_bias=False, **options)
            self.projection.build((None, None, width + self.num_features))

    def features(self, indices: Any) -> Any:
        """Returns float32 features `(..., T, num_features)` of int32 positions `(..., T)`."""
        return ops.cast(indices, "float32")[..., None]

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
        batch, length, d_model = ops.shape(embeddings)
        features = self.features(positions(length, offset))
        features = ops.broadcast_to(features, (batch, length, self.num_features))
        if self.concatenate:
            features = ops.cast(features, self.compute_dtype)
            return self.projection(ops.concatenate([embeddings, features], axis=-1))
        if self.num_features > 1:  # A single feature is added to every feature of the embedding.
            added = max(d_model - self.num_features, 0)
            features = ops.pad(features, ((0, 0), (0, 0), (0, added)))[..., :d_model]
        return self.add_to(embeddings, features)


@position_encoding("normalized_index")
@position_encoding("normalized_index_concatenated", concatenate=True)
class NormalizedIndexPositionalEncoding(IndexPositionalEncoding):
    """Encodes each position as its index divided by `max_length`.

    Example:

    >>> NormalizedIndexPositionalEncoding(max_length=100)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Divisor of the index, in tokens.
        concatenate: See `IndexPositionalEncoding`.
    """

    def __init__(self, max_length: int, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(concatenate=concatenate, **kwargs)
        self.max_length = max_length

    def features(self, indices: Any) -> Any:
        return super().features(indices) / self.max_length


@position_encoding("binary")
@position_encoding("binary_concatenated", concatenate=True)
class BinaryPositionalEncoding(IndexPositionalEncoding):
    """Uses the binary digits of the position, lowest digit first, as features.

    Digits are bounded, but neighbouring positions can have distant vectors: from position 7 (1110)
    to position 8 (0001), every digit changes. The paper's sinusoids are a smooth version.

    Example:

    >>> BinaryPositionalEncoding(max_length=128)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Maximum sequence length in tokens. A position has `ceil(log2(max_length))`
            digits.
        concatenate: See `IndexPositionalEncoding`.
    """

    def __init__(self, max_length: int, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(concatenate=concatenate, **kwargs)
        self.max_length = max_length
        self.num_features = max((max_length - 1).bit_length(), 1)

    def features(self, indices: Any) -> Any:
        powers = 2 ** ops.arange(self.num_features, dtype="int32")
        return ops.cast((indices[..., None] // powers) % 2, "float32")


# 2. Sparse attention patterns (Child et al. 2019).

# The scores `(..., T, n)` of n keys, and a function that multiplies weights of this shape by the
# values of these keys.
Group = tuple[Any, Callable[[Any], Any]]


class BlockPattern(AttentionPattern):
    """Base class of sparse patterns for self-attention, which split the sequence into blocks.

    One softmax covers the scores of the two groups of keys that a subclass returns.
    """

    needs_window = True

    def heads(
        self, query: Any, key: Any, value: Any, padding_mask: Any, is_causal: bool, dropout: Any
    ) -> Any:
        check_self_attention(self, query, key)
        size = fitting_size(next(iter(self.get_config().values())), ops.shape(key)[2])
        parts = (query, key, value, key_marks(padding_mask, key))
        groups = self._groups(is_causal, *(split_blocks(x, size) for x in parts))
        scores = ops.concatenate([scores for scores, _ in groups], axis=-1)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        weights = weights if dropout is None else dropout(weights, training=True)
        num_near = ops.shape(groups[0][0])[-1]
        heads = groups[0][1](weights[..., :num_near])
        if len(groups) == 2:
            heads = heads + groups[1][1](weights[..., num_near:])
        return join_blocks(heads, ops.shape(query)[2])

    def _groups(self, use_causal_mask: bool, queries: Any, *keys: Any) -> list[Group]:
        """Returns one or two groups of keys: the near keys, and possibly the far keys.

        Queries are `(B, H, M, b, K)`. `keys` are the keys of this shape, the values
        `(B, H, M, b, K_v)`, and the marks `(B, 1, M, b, 1)` (see `key_marks`).
        """
        raise NotImplementedError


def _group(allowed: Any, queries: Any, keys: Any, values: Any, marks: Any) -> Group:
    """Returns the group of `keys` `(..., n, K)`."""
    scores = ops.cast(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), "float32")
    scores = ops.where(both_masks(allowed, ops.swapaxes(marks, -1, -2)), scores, MASKED_SCORE)
    return scores, lambda weights: ops.matmul(weights, values)


def _rearranged(group: Group, inward: Callable[[Any], Any], outward: Callable[[Any], Any]) -> Group:
    """Returns a group in another arrangement: `outward` rearranges, `inward` is the inverse."""
    scores, multiply = group
    return outward(scores), lambda weights: outward(multiply(inward(weights)))


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


# 3. A norm that is worse than layer normalization.


@normalization("batch")
class BatchNormalization(Recomputable, keras.layers.BatchNormalization):
    """Normalizes each feature over all real tokens of a batch, in float32 under every dtype policy.

    Without training, it uses moving averages, so a token's result does not depend on other tokens.
    Unlike `keras.layers.BatchNormalization`, the layer also accepts the tokens `(B * N, D)` of a
    decoding step after it was built for sequences `(B, T, D)`.

    Example:

    >>> y = BatchNormalization()(x, padding_mask=ids != 0, training=True)

    Args:
        epsilon: Constant that is added to the variance. Defaults to 1e-6.
        **kwargs: Other arguments of `keras.layers.BatchNormalization`.

    Call arguments:
        inputs: float tensor `(B, T, D)`, or `(B * N, D)` without training.
        padding_mask: bool tensor `(B, T)`, True = real token. Defaults to None, which means the
            Keras mask of `inputs`, if any.
        training: Whether to use the statistics of the batch. Defaults to False.

    Returns:
        A float tensor of the shape of `inputs`.

    Source: Ioffe and Szegedy 2015, "Batch Normalization".
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, **kwargs)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.input_spec = None

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        training: bool = False,
        mask: Any = None,
        inputs_mask: Any = None,
    ) -> Any:
        mask = given_mask(padding_mask, inputs_mask, mask)  # Keras gives a mask no other name.
        return super().call(inputs, training=training, mask=mask)
