"""Equation 1 of the paper."""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

# Finite, so that a fully masked row gives equal weights instead of NaN; scores are float32.
MASKED_SCORE = -1e9


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    use_scale: bool = True,
    dropout: Callable[[Any], Any] | None = None,
    key_is_transposed: bool = False,
    score_bias: Any = None,
) -> tuple[Any, Any]:
    """Computes softmax(QK^T / sqrt(d_k)) V (§3.2.1).

    The softmax runs in float32 under every dtype policy. A query whose keys are all masked gets
    equal weights: finite, and for the caller to ignore.

    Args:
        query: float tensor `(..., T, K)`.
        key: float tensor `(..., S, K)`.
        value: float tensor `(..., S, K_v)`.
        attention_mask: bool tensor broadcastable to `(..., T, S)`, True = may attend. Defaults to
            None: all attend to all.
        use_scale: Whether to divide the scores by sqrt(d_k). Without it they have variance d_k, and
            the softmax saturates. Defaults to True.
        dropout: Function applied to the weights, such as a `Dropout`. Defaults to None.
        key_is_transposed: Whether `key` is `(..., K, S)`, as caches hold it. Defaults to False.
        score_bias: float tensor broadcastable to `(..., T, S)`, added to the scaled scores.
            Defaults to None.

    Returns:
        A tuple of the output, float `(..., T, K_v)`, and the attention weights before dropout,
        float `(..., T, S)`, both in the dtype of `value`.

    Source: Vaswani et al. 2017, eq. 1.
    """
    if use_scale:
        query = query * (1.0 / math.sqrt(query.shape[-1]))
    key = key if key_is_transposed else ops.swapaxes(key, -1, -2)
    scores = ops.cast(ops.matmul(query, key), "float32")
    if score_bias is not None:
        scores = scores + score_bias
    if attention_mask is not None:
        scores = ops.where(attention_mask, scores, MASKED_SCORE)
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if dropout is None else dropout(weights), value), weights
