"""Scaled dot-product attention (equation 1), its masks, records of its weights, and one head.

Masks are bool tensors. In an attention mask, True means that the query may attend to the key. In a
padding mask, True means that the token is real.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_transformer._backend import set_to
from keras_transformer._backend.operations import MASKED_SCORE, scalar
from keras_transformer._backend.types import Ids, Mask, Shape, Size, Tensor
from keras_transformer.layers.base import ConfiguredLayer, Dense, given_mask


def padding_mask(ids: Ids, pad_id: int = 0) -> Any:
    """Returns a bool tensor `(B, S)`, True where `ids`, int `(B, S)`, is not `pad_id`."""
    if keras.backend.standardize_dtype(getattr(ids, "dtype", "int32")).startswith("uint"):
        ids = ops.cast(ids, "int32")  # as an unsigned integer, -1 would be a large number
    return ops.not_equal(ids, pad_id)


def causal_mask(length: Size, key_length: Size = None) -> Any:
    """Returns a mask that lets each position attend to itself and to earlier positions (§3.2.3).

    The bool tensor `(1, T, S)` is True where the key (column) is not later than the query (row). T
    is `length`, and S is `key_length`, by default T. Each is an int or a 0-d int tensor.
    """
    keys = ops.arange(length if key_length is None else key_length)
    return ops.expand_dims(keys[None, :] <= ops.arange(length)[:, None], 0)


def both_masks(mask: Mask | None, other: Mask) -> Any:
    """Returns the logical AND of two masks, or `other` if `mask` is None."""
    return other if mask is None else ops.logical_and(mask, other)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None = None,
    use_scale: bool = True,
    dropout: Callable[[Tensor], Tensor] | None = None,
    key_is_transposed: bool = False,
    score_bias: Tensor | None = None,
    soft_cap: float | None = None,
) -> tuple[Any, Any]:
    """Computes softmax(QK^T / sqrt(d_k)) V (§3.2.1).

    The softmax runs in float32 under every dtype policy. If all keys of a query are masked, they
    get equal weights, so the output for this query is finite. Callers ignore this output.

    Args:
        query: float tensor `(..., T, K)`.
        key: float tensor `(..., S, K)`.
        value: float tensor `(..., S, K_v)`.
        attention_mask: bool tensor broadcastable to `(..., T, S)`, True = may attend. Defaults to
            None, which lets every query attend to every key.
        use_scale: Whether to divide the scores by sqrt(d_k). Without this division, the scores have
            a variance of about d_k and saturate the softmax. Defaults to True.
        dropout: Function applied to the weights, such as a `Dropout`. Defaults to None.
        key_is_transposed: Whether `key` has shape `(..., K, S)`, as in a cache. Defaults to False.
        score_bias: float tensor broadcastable to `(..., T, S)`, added to the scaled scores.
            Defaults to None.
        soft_cap: Bound c of the scaled scores s, which become c tanh(s / c) before the bias is
            added. Defaults to None.

    Returns:
        A tuple of two float tensors in the dtype of `value`: the output `(..., T, K_v)` and the
        attention weights before dropout `(..., T, S)`.

    Source: Vaswani et al. 2017, eq. 1.
    """
    if use_scale:
        query = query * (1.0 / math.sqrt(query.shape[-1]))
    key = key if key_is_transposed else ops.swapaxes(key, -1, -2)
    scores = ops.cast(ops.matmul(query, key), "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if score_bias is not None:
        scores = scores + score_bias
    if attention_mask is not None:
        scores = ops.where(attention_mask, scores, scalar(MASKED_SCORE, scores.dtype))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if dropout is None else dropout(weights), value), weights


AttentionKind = Literal["encoder", "decoder", "cross"]  # see `record_attention`


class AttentionRecord(NamedTuple):
    """The attention weights of one call of a layer."""

    layer: keras.layers.Layer
    kind: AttentionKind
    weights: Any  # float `(B, H, T, S)` or, if the layer has no heads, `(B, T, S)`


_RECORDS: ContextVar[list[AttentionRecord] | None] = ContextVar("_RECORDS", default=None)


@contextmanager
def recorded_attention() -> Iterator[list[AttentionRecord]]:
    """Yields a list to which each call of an attention layer in this thread adds a record.

    An `AttentionPattern` then is a mask of all scores.
    """
    records: list[AttentionRecord] = []
    with set_to(_RECORDS, records):
        yield records


def is_recorded() -> bool:
    """Returns whether attention layers must compute all their weights and record them."""
    return _RECORDS.get() is not None


def record_attention(layer: keras.layers.Layer, kind: AttentionKind, weights: Tensor) -> None:
    """Records the attention weights of a call, if `attention_maps` runs the model.

    An attention layer of your own calls this function at the end of its `call`. `kind` is
    `"encoder"` for self-attention to all positions, `"decoder"` for causal self-attention, and
    `"cross"` for attention to another sequence. `weights` is a float tensor `(B, H, T, S)` or, if
    the layer has no heads, `(B, T, S)`.
    """
    if (records := _RECORDS.get()) is not None:
        records.append(AttentionRecord(layer, kind, weights))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(ConfiguredLayer):
    """Computes self-attention (equation 1) with one head and no output projection (§3.2.1).

    Example:

    >>> SelfAttention(d_k=64)(x, padding_mask=ids != 0).shape      # (B, T, 64)

    Args:
        d_k: Width K of query and key.
        d_v: Width of the value and the output. Defaults to `d_k`.
        use_scale: Whether scores are divided by sqrt(d_k). Defaults to True.

    Call arguments:
        x: float tensor `(B, T, D)`.
        padding_mask: bool tensor `(B, T)`, True = real token. Defaults to the Keras mask of `x`, if
            any.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        return_attention_weights: Whether to return a tuple of the output and the attention weights
            `(B, T, T)`. Defaults to False.

    Returns:
        A float tensor `(B, T, d_v)`.

    Source: Vaswani et al. 2017, §3.2.1.
    """

    def __init__(
        self, d_k: int, d_v: int | None = None, use_scale: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        d_v = d_k if d_v is None else d_v
        self.store_arguments(locals())
        dtype = self.dtype_policy
        self.query_projection = Dense(self.d_k, dtype=dtype, name="query")
        self.key_projection = Dense(self.d_k, dtype=dtype, name="key")
        self.value_projection = Dense(self.d_v, dtype=dtype, name="value")

    def build(self, x_shape: Shape) -> None:
        for projection in (self.query_projection, self.key_projection, self.value_projection):
            projection.build(x_shape)

    def call(
        self,
        x: Tensor,
        padding_mask: Mask | None = None,
        use_causal_mask: bool = False,
        return_attention_weights: bool = False,
        mask: Mask | None = None,
    ) -> Any:
        padding_mask = given_mask(padding_mask, mask)
        attention_mask = causal_mask(ops.shape(x)[1]) if use_causal_mask else None
        if padding_mask is not None:
            attention_mask = both_masks(attention_mask, padding_mask[:, None, :])
        layers = self.query_projection, self.key_projection, self.value_projection
        query, key, value = (layer(x) for layer in layers)
        output, weights = scaled_dot_product_attention(
            query, key, value, attention_mask, self.use_scale
        )
        record_attention(self, "decoder" if use_causal_mask else "encoder", weights)
        return (output, weights) if return_attention_weights else output
