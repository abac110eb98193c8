"""All to all, without all scores in memory."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.fused_attention import fused_attention
from keras_transformer._backend.loops import sequential_loop
from keras_transformer.layers.attention.attention_pattern import (
    AttentionPattern,
    attention_pattern,
    fitting_size,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import MASKED_SCORE
from keras_transformer.layers.dropout import keep_mask

# Below every score: a key that does not exist gets no weight even where all others are masked.
ABSENT_SCORE = 2 * MASKED_SCORE


@attention_pattern("full")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Every position attends to every other, in memory linear in the length (§3.2.1).

    The result is that of `MultiHeadAttention` without a pattern. The backend's fused kernel
    computes it where there is one for the arguments, else `blockwise_attention`, which goes over
    blocks of the keys and, for gradients, over them once more. The time stays quadratic. On 2 cores
    blocks take less of it than all scores at once on JAX from about 4,000 tokens on, as much on
    TensorFlow, and PyTorch's kernel less at 2,000 already.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FullAttention())

    Args:
        block_size: Keys of a block, at least 1. Defaults to 512.

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
        drops = dropout is not None and dropout.rate > 0 and training
        if not drops:
            fused = fused_attention(query, key, value, padding_mask, use_causal_mask, use_scale)
            if fused is not None:
                return fused
        return blockwise_attention(
            query,
            key,
            value,
            padding_mask,
            use_causal_mask,
            use_scale,
            self.block_size,
            dropout.rate if drops else 0.0,
            dropout.seed_generator.next() if drops else None,
        )

    def allows(self, distance: Any) -> Any:
        return ops.ones_like(distance, dtype="bool")


class _Rules(NamedTuple):
    """What is no matter of differentiation.

    Attributes:
        num_keys: Keys S, without those that fill the last block.
        is_real: bool `(B, 1, 1, S)`, filled up, or None.
    """

    block_size: int
    num_keys: Any
    is_real: Any
    use_causal_mask: bool
    dropout_rate: float
    seed: Any


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
    """Computes softmax(QK^T / sqrt(d_k)) V a block of keys at a time (§3.2.1).

    Maximum and sum of a row's exponentials are kept up to date while the blocks go by, and what was
    added up before is scaled by what they have changed. The backward pass computes the scores of
    each block anew. So no more than the scores of `block_size` keys are held, in either pass. The
    softmax runs in float32. The result is that of `scaled_dot_product_attention`.

    Args:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether to divide the scores by sqrt(d_k). Defaults to True.
        block_size: Keys of a block, at least 1. Defaults to 512.
        dropout_rate: Dropout on the weights, in [0, 1). Defaults to 0.
        seed: int tensor `(2,)`, what is dropped. Needed where something is. Defaults to None.

    Returns:
        A float tensor `(B, H, T, K_v)` in the dtype of `value`.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; the backward pass:
    Dao et al. 2022, "FlashAttention", appendix B.4.
    """
    if use_scale:
        query = query * (1.0 / math.sqrt(query.shape[-1]))
    num_keys = ops.shape(key)[2]
    block_size = fitting_size(block_size, num_keys)
    added = 0 if block_size is num_keys else -num_keys % block_size
    is_real = None
    if padding_mask is not None:
        is_real = ops.cast(_fill(ops.cast(padding_mask, "int32")[:, None, :, None], added), "bool")
        is_real = ops.swapaxes(is_real, -1, -2)
    rules = _Rules(block_size, num_keys, is_real, use_causal_mask, dropout_rate, seed)

    @ops.custom_gradient
    def attend(query: Any, key: Any, value: Any) -> Any:
        output, largest, total = _forward(query, key, value, rules)

        def gradient(*arguments: Any, upstream: Any = None) -> Any:
            upstream = arguments[-1] if upstream is None else upstream
            return _backward(query, key, value, output, largest, total, upstream, rules)

        return output, gradient

    heads = attend(query, _fill(key, added), _fill(value, added))
    return ops.cast(heads, value.dtype)


def _forward(query: Any, key: Any, value: Any, rules: _Rules) -> tuple[Any, Any, Any]:
    """The float32 output, and of each row the largest score and the sum of exponentials."""

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
    begin = (
        row + ops.zeros((value.shape[-1],), "float32"),
        row + 2 * ABSENT_SCORE,
        row,
    )
    num_blocks = ops.shape(key)[2] // rules.block_size
    output, largest, total = sequential_loop(num_blocks, body, begin)
    return output / total, largest, total


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
    """The gradients of query, key and value."""
    change = ops.sum(d_output * output, axis=-1, keepdims=True)
    d_heads = ops.cast(d_output, value.dtype)

    def body(block: Any, d_query: Any, d_key: Any, d_value: Any) -> tuple[Any, ...]:
        scores, is_allowed = _scores(query, key, block, rules)
        weights = ops.exp(scores - largest) / total
        kept = ops.cast(_drop(weights, block, rules), value.dtype)
        d_value_block = ops.matmul(ops.swapaxes(kept, -1, -2), d_heads)
        d_kept = ops.matmul(d_heads, ops.swapaxes(_block(value, block, rules), -1, -2))
        d_weights = _drop(ops.cast(d_kept, "float32"), block, rules)
        d_scores = ops.where(is_allowed, weights * (d_weights - change), 0.0)
        d_scores = ops.cast(d_scores, query.dtype)
        d_query = d_query + ops.cast(ops.matmul(d_scores, _block(key, block, rules)), "float32")
        d_key_block = ops.matmul(ops.swapaxes(d_scores, -1, -2), query)
        start = (0, 0, block * rules.block_size, 0)
        d_key = ops.slice_update(d_key, start, d_key_block)
        return d_query, d_key, ops.slice_update(d_value, start, d_value_block)

    begin = (
        ops.zeros_like(query, dtype="float32"),
        ops.zeros_like(key),
        ops.zeros_like(value),
    )
    num_blocks = ops.shape(key)[2] // rules.block_size
    d_query, d_key, d_value = sequential_loop(num_blocks, body, begin)
    return ops.cast(d_query, query.dtype), d_key, d_value


def _scores(query: Any, key: Any, block: Any, rules: _Rules) -> tuple[Any, Any]:
    """Float32 scores `(B, H, T, block_size)` of a block, and where they are real ones."""
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
    masked = ops.where(exists, MASKED_SCORE, ABSENT_SCORE)
    return ops.where(is_allowed, ops.cast(scores, "float32"), masked), is_allowed


def _drop(weights: Any, block: Any, rules: _Rules) -> Any:
    """Drops the same weights of a block each time."""
    if not rules.dropout_rate:
        return weights
    seed = ops.cast(rules.seed, "int32") + ops.stack([ops.cast(block, "int32"), 0])
    is_kept = keep_mask(seed, rules.dropout_rate, ops.shape(weights))
    return ops.where(is_kept, weights * (1.0 / (1.0 - rules.dropout_rate)), 0.0)


def _block(x: Any, block: Any, rules: _Rules) -> Any:
    return _take(x, 2, block * rules.block_size, rules.block_size)


def _take(x: Any, axis: int, start: Any, size: int) -> Any:
    starts, sizes = [0] * 4, list(ops.shape(x))
    starts[axis], sizes[axis] = start, size
    return ops.slice(x, starts, sizes)


def _fill(x: Any, added: Any) -> Any:
    """Appends zeros `added` along axis 2 of four."""
    if isinstance(added, int) and not added:
        return x
    batch, heads, _, width = ops.shape(x)
    return ops.concatenate([x, ops.zeros((batch, heads, added, width), x.dtype)], axis=2)
