"""Full attention, computed without storing all scores."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.operations import (
    MASKED_SCORE,
    attend,
    custom_gradient,
    scalar,
    sequential_loop,
)
from keras_transformer.layers.attention.attention_patterns import (
    AttentionPattern,
    attention_pattern,
    check_mask_length,
    fitting_size,
)
from keras_transformer.layers.dropout import keep_mask

# Score of the zeros that fill up the last block of keys. If all keys of a query are masked, they
# get equal weights; these zeros get no weight, because their score is even lower.
ABSENT_SCORE = 2 * MASKED_SCORE


@attention_pattern("full")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Attends to all positions (§3.2.1). Memory is linear in the sequence length.

    `MultiHeadAttention` gives the same result with this pattern as without a pattern. On PyTorch, a
    fused kernel computes the result without storing the scores, unless weights are dropped or both
    masks are given. Otherwise, `blockwise_attention` computes the result. The time is quadratic in
    the sequence length. On PyTorch with 2 CPU cores, this pattern was faster than no pattern for
    sequences of at least 2,000 tokens. On JAX with 2 CPU cores, this pattern was faster for
    sequences of at least about 4,000 tokens. On TensorFlow, the time was the same with and without
    this pattern.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FullAttention())

    Args:
        block_size: Number of keys per block, at least 1. Defaults to 512.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; Dao et al. 2022,
    "FlashAttention".
    """

    block_size: int = 512

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
        drops = dropout is not None and dropout.rate > 0 and training
        # The kernel would need a mask for all pairs of query and key if both masks are given.
        if not (drops or (use_causal_mask and padding_mask is not None)):
            heads = attend(query, key, value, padding_mask, use_causal_mask, use_scale)
            if heads is not None:
                return heads
        return blockwise_attention(
            query,
            key,
            value,
            padding_mask,
            use_causal_mask,
            use_scale,
            self.block_size,
            dropout.rate if drops else 0.0,
            dropout.next_seed() if drops else None,
        )

    def allows(self, query: Any, key: Any) -> Any:
        return ops.ones_like(query - key, dtype="bool")


class _Rules(NamedTuple):
    """Arguments of `blockwise_attention` that have no gradient.

    Attributes:
        num_keys: Number of keys S, without the zeros that fill up the last block.
        is_real: The padding mask, bool `(B, 1, 1, S')`, or None. S' is S, rounded up to a multiple
            of the block size.
    """

    block_size: int
    num_keys: Any
    use_causal_mask: bool
    dropout_rate: float
    is_real: Any = None
    seed: Any = None


def blockwise_attention(
    query: Any,
    key: Any,
    value: Any,
    padding_mask: Any = None,
    use_causal_mask: bool = False,
    use_scale: bool = True,
    block_size: int = 512,
    dropout_rate: float = 0.0,
    seed: Any = None,
) -> Any:
    """Computes softmax(QK^T / sqrt(d_k)) V one block of keys at a time (§3.2.1).

    For each query, the forward pass keeps the largest score so far, and sums the exponentials of
    the scores minus this maximum. If a later block has a larger score, the sums are rescaled to the
    new maximum. The backward pass recomputes the scores of each block (Dao et al., appendix B.4).
    Forward and backward pass store the scores of only one block at a time. The softmax runs in
    float32.

    `block_size` is the number of keys per block. `seed` is an int tensor `(2,)` that determines the
    dropout mask. `seed` is required if `dropout_rate` is above 0. For the other arguments and the
    result, see `AttentionPattern`.
    """
    if use_scale:
        query = query * (1.0 / math.sqrt(query.shape[-1]))
    if 0 in (*query.shape[:3], key.shape[2]):  # no sentences, queries or keys: empty, or zeros
        return ops.matmul(ops.matmul(query, ops.swapaxes(key, -1, -2)), value)
    num_keys = ops.shape(key)[2]
    block_size = fitting_size(block_size, num_keys)
    added = 0 if block_size is num_keys else -num_keys % block_size
    is_real = None
    if padding_mask is not None:
        is_real = ops.cast(_pad(ops.cast(padding_mask, "int32")[:, None, :, None], added), "bool")
        is_real = ops.swapaxes(is_real, -1, -2)
    given = {name: x for name, x in (("is_real", is_real), ("seed", seed)) if x is not None}

    # These tensors are arguments, because `attend` must not capture tensors if JAX traces it twice.
    @custom_gradient
    def attend(query: Any, key: Any, value: Any, *tensors: Any) -> Any:
        named = dict(zip(given, tensors, strict=True))
        rules = _Rules(block_size, num_keys, use_causal_mask, dropout_rate, **named)
        output, largest, total = _forward(query, key, value, rules)

        def gradient(*arguments: Any, upstream: Any = None) -> Any:
            upstream = arguments[-1] if upstream is None else upstream
            gradients = _backward(query, key, value, output, largest, total, upstream, rules)
            return *gradients, *(None for _ in tensors)

        return output, gradient

    heads = attend(query, _pad(key, added), _pad(value, added), *given.values())
    return ops.cast(heads, value.dtype)


def _forward(query: Any, key: Any, value: Any, rules: _Rules) -> tuple[Any, Any, Any]:
    """Returns three float32 tensors: output, largest score and sum of exponentials per query."""

    def body(block: Any, output: Any, largest: Any, total: Any) -> tuple[Any, ...]:
        scores, _ = _scores(query, key, block, rules)
        now_largest = ops.maximum(largest, ops.max(scores, axis=-1, keepdims=True))
        exponentials = ops.exp(scores - now_largest)
        shrinking = ops.exp(largest - now_largest)
        kept = ops.cast(_drop(exponentials, block, rules), value.dtype)
        added = ops.matmul(kept, _block(value, block, rules))
        output = output * shrinking + ops.cast(added, "float32")
        total = total * shrinking + ops.sum(exponentials, axis=-1, keepdims=True)
        return output, now_largest, total

    row = ops.zeros_like(query[..., :1], dtype="float32")
    begin = (row + ops.zeros((value.shape[-1],), "float32"), row + 2 * ABSENT_SCORE, row)
    num_blocks = ops.shape(key)[2] // rules.block_size
    output, largest, total = sequential_loop(num_blocks, body, begin)
    return ops.divide_no_nan(output, total), largest, total  # without keys, the total is 0


def _backward(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    largest: Any,
    total: Any,
    d_output: Any,
    rules: _Rules,
) -> tuple[Any, Any, Any]:
    """Returns the gradients of query, key and value."""
    change = ops.sum(d_output * output, axis=-1, keepdims=True)
    d_heads = ops.cast(d_output, value.dtype)

    def body(block: Any, d_query: Any, d_key: Any, d_value: Any) -> tuple[Any, ...]:
        scores, is_allowed = _scores(query, key, block, rules)
        weights = ops.exp(scores - largest) / total
        kept = ops.cast(_drop(weights, block, rules), value.dtype)
        d_value_block = ops.matmul(ops.swapaxes(kept, -1, -2), d_heads)
        d_kept = ops.matmul(d_heads, ops.swapaxes(_block(value, block, rules), -1, -2))
        d_weights = _drop(ops.cast(d_kept, "float32"), block, rules)
        d_scores = ops.where(is_allowed, weights * (d_weights - change), scalar(0, "float32"))
        d_scores = ops.cast(d_scores, query.dtype)
        d_query = d_query + ops.cast(ops.matmul(d_scores, _block(key, block, rules)), "float32")
        d_key_block = ops.matmul(ops.swapaxes(d_scores, -1, -2), query)
        start = (0, 0, block * rules.block_size, 0)
        d_key = ops.slice_update(d_key, start, d_key_block)
        return d_query, d_key, ops.slice_update(d_value, start, d_value_block)

    begin = (ops.zeros_like(query, dtype="float32"), ops.zeros_like(key), ops.zeros_like(value))
    num_blocks = ops.shape(key)[2] // rules.block_size
    d_query, d_key, d_value = sequential_loop(num_blocks, body, begin)
    return ops.cast(d_query, query.dtype), d_key, d_value


def _scores(query: Any, key: Any, block: Any, rules: _Rules) -> tuple[Any, Any]:
    """Returns the float32 scores of a block of keys, and a bool mask of the allowed keys.

    The scores have the shape `(B, H, T, block_size)`. The mask is broadcastable to this shape.
    """
    scores = ops.matmul(query, ops.swapaxes(_block(key, block, rules), -1, -2))
    keys = block * rules.block_size + ops.arange(rules.block_size, dtype="int32")
    exists = keys < rules.num_keys
    is_allowed = exists
    if rules.use_causal_mask:
        queries = ops.arange(ops.shape(query)[2], dtype="int32")
        is_allowed = ops.logical_and(is_allowed, keys <= queries[:, None])
    if rules.is_real is not None:
        marks = _take(rules.is_real, 3, block * rules.block_size, rules.block_size)
        is_allowed = ops.logical_and(is_allowed, marks)
    masked = ops.where(exists, *(scalar(x, "float32") for x in (MASKED_SCORE, ABSENT_SCORE)))
    return ops.where(is_allowed, ops.cast(scores, "float32"), masked), is_allowed


def _drop(weights: Any, block: Any, rules: _Rules) -> Any:
    """Applies dropout. Forward and backward pass use the same dropout mask for a block."""
    if not rules.dropout_rate:
        return weights
    seed = rules.seed + ops.stack([ops.cast(block, "int32"), 0])
    is_kept = keep_mask(seed, rules.dropout_rate, ops.shape(weights))
    kept = weights * (1.0 / (1.0 - rules.dropout_rate))
    return ops.where(is_kept, kept, scalar(0, weights.dtype))


def _block(x: Any, block: Any, rules: _Rules) -> Any:
    return _take(x, 2, block * rules.block_size, rules.block_size)


def _take(x: Any, axis: int, start: Any, size: int) -> Any:
    starts, sizes = [0] * 4, list(ops.shape(x))
    starts[axis], sizes[axis] = start, size
    return ops.slice(x, starts, sizes)


def _pad(x: Any, added: Any) -> Any:
    """Appends `added` zeros along axis 2 of a 4-D tensor."""
    if isinstance(added, int) and not added:
        return x
    batch, heads, _, width = ops.shape(x)
    return ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
