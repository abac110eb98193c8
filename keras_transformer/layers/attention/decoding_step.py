"""Attention of one new token per hypothesis to cached keys and values.

The `call` of `MultiHeadAttention` computes the same for whole sequences. In the shapes, B is the
number of sentences and N the number of hypotheses per sentence.
"""

from typing import Any

from keras import ops

from keras_transformer._backend.types import Mask, Size, Tensor
from keras_transformer.layers.attention.cache import FixedKeyValues, KeyValues
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)


def self_attention_step(
    attention: MultiHeadAttention,
    query: Tensor,
    cache: KeyValues,
    projections: dict[str, Tensor],
    position: Size,
    mask: Mask,
    prompt_length: Size = 0,
) -> tuple[Tensor, KeyValues]:
    """Computes causal self-attention for one new token per hypothesis, `query` `(B * N, D)`.

    The bool `mask` `(B * H, N, P + L * N)` is the padding mask of the prompt, of P tokens, and the
    mask that `take_slots` returns. Returns the output `(B * N, D)`, and the `cache` of earlier
    positions with the new key and value of hypothesis n in slot n.
    """
    beams, num_slots = ops.shape(mask)[1:]
    queries, keys, values = _project(attention, query, beams, projections, position)
    cache = cache.write(keys, values, prompt_length + position * beams)
    bias = None
    if attention.needs_positions:
        slots = ops.arange(num_slots, dtype="int32") - prompt_length
        own = prompt_length + ops.where(slots < 0, slots, slots // beams)
        is_real = mask[:, :1, :prompt_length]
        mask, bias = attention.by_position(prompt_length + position, own, is_real, mask)
    if bias is not None:
        of_groups = beams if attention.num_kv_heads < attention.num_heads else 1
        rows = ops.shape(queries)[0] // attention.num_heads
        bias = _group(attention, ops.tile(bias[:, None], (rows, of_groups, 1)))
    heads, _ = _attend(attention, queries, cache, _group(attention, mask), bias)
    return _join_beams(attention, heads, beams), cache


def cross_attention_step(
    attention: MultiHeadAttention, query: Tensor, memory: KeyValues, is_real: Mask, beams: Size
) -> tuple[Tensor, Tensor]:
    """Returns the output `(B * N, D)` for a `query` of this shape, and the weights `(B, H, N, S)`.

    `is_real` is the padding mask of the memory, bool `(B, S)`.
    """
    queries = _split_beams(attention, attention.query_projection(query), beams, attention.d_k)
    if attention.qk_norm:
        queries = attention.query_norm(queries)
    heads, weights = _attend(attention, queries, memory, is_real[:, None, None, :])
    weights = ops.reshape(weights, (-1, attention.num_heads, beams, ops.shape(weights)[-1]))
    return _join_beams(attention, heads, beams), weights


def fuse_projections(attention: MultiHeadAttention) -> dict[str, Tensor]:
    """Joins query, key and value projections, so that one matrix product computes all three.

    The result has a `"kernel"` `(D, H * K + G * (K + K_v))`, and a `"bias"` if the projections have
    biases. It is empty if they are quantized.
    """
    parts = _projections(attention)
    if any(part.quantization_config for part in parts):
        return {}
    names, dtype = ["kernel", "bias"] if attention.use_bias else ["kernel"], attention.compute_dtype
    joined = {x: ops.concatenate([getattr(part, x) for part in parts], axis=-1) for x in names}
    return {name: ops.cast(x, dtype) for name, x in joined.items()}


def _projections(attention: MultiHeadAttention) -> tuple[Any, Any, Any]:
    return attention.query_projection, attention.key_projection, attention.value_projection


def _project(
    attention: MultiHeadAttention,
    query: Tensor,
    beams: Size,
    projections: dict[str, Tensor],
    position: Size,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries `(B * H, N, K)`, and keys and values `(B * G, N, K)`, of one position."""
    if projections:
        projected = ops.matmul(query, projections["kernel"])
        if attention.use_bias:
            projected = projected + projections["bias"]
        width = attention.num_heads * attention.d_k
        end = width + attention.num_kv_heads * attention.d_k
        # Not `ops.split`, which copies the indices to the device on PyTorch.
        parts = [projected[:, :width], projected[:, width:end], projected[:, end:]]
    else:
        parts = [projection(query) for projection in _projections(attention)]
    sizes = attention.d_k, attention.d_k, attention.d_v
    pairs = zip(parts, sizes, strict=True)
    heads = [_split_beams(attention, part, beams, size) for part, size in pairs]
    queries, keys, values = (ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in heads)
    if attention.position_encoding is not None or attention.qk_norm:
        norms = attention.query_norm, attention.key_norm
        queries, keys = (
            attention.normalize_and_rotate(x[..., None, :], norm, position)[..., 0, :]
            for x, norm in zip((queries, keys), norms, strict=True)
        )
    return queries, keys, values


def _attend(
    attention: MultiHeadAttention,
    queries: Tensor,
    memory: KeyValues,
    mask: Mask,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attends with queries `(..., H, N, K)`. Those that share keys are rows of one matrix."""
    is_transposed, scale = isinstance(memory, FixedKeyValues), attention.use_scale
    options = is_transposed, bias, attention.attention_soft_cap
    queries = _group(attention, queries)
    return scaled_dot_product_attention(
        queries, memory.key, memory.value, mask, scale, None, *options
    )


def _group(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """Reshapes `(..., H, N, K)` to `(..., G, H / G * N, K)`, and `(B * H, N, K)` likewise."""
    size = attention.num_heads // attention.num_kv_heads
    *first, _, rows, width = ops.shape(x)
    return x if size == 1 else ops.reshape(x, (*first, -1, size * rows, width))


def _split_beams(attention: MultiHeadAttention, x: Tensor, beams: Size, size: int) -> Tensor:
    """Reshapes `(B * N, H * K)` to `(B, H, N, K)`, where K is `size`."""
    return attention.split_heads(ops.reshape(x, (-1, beams, x.shape[-1])), size)


def _join_beams(attention: MultiHeadAttention, heads: Tensor, beams: Size) -> Tensor:
    """Projects the results of `_attend` to `(B * N, D)`."""
    heads = ops.reshape(heads, (-1, attention.num_heads, beams, attention.d_v))
    joined = attention.join_heads(heads)
    return attention.output_projection(ops.reshape(joined, (-1, joined.shape[-1])))
