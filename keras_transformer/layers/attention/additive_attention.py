"""Additive attention: a small network computes a score for each pair of query and key."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import MASKED_SCORE
from keras_transformer.layers.attention.attention_records import record_attention
from keras_transformer.layers.base import ConfiguredLayer, Dense


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(ConfiguredLayer):
    """Computes attention whose scores are v^T tanh(W_q q + W_k k) instead of q^T k (§3.2.1).

    W_q, W_k and v are learned, as in Bahdanau et al. 2015. Queries and keys may have different
    widths. `keras.layers.AdditiveAttention` has no matrices W_q and W_k.

    Example:

    >>> context = AdditiveAttention(units=32)(query=decoder_state, key=encoder_states)

    Args:
        units: Width of the hidden layer tanh(W_q q + W_k k).

    Call arguments:
        query: float tensor `(B, T, D_q)`.
        key: float tensor `(B, S, D_k)`.
        value: float tensor `(B, S, D_v)`. Defaults to `key`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None,
            which means the Keras mask of `key`, if any.
        return_attention_weights: Whether to also return the attention weights. Defaults to False.

    Returns:
        A float tensor `(B, T, D_v)`. With `return_attention_weights`, the layer returns a tuple of
        this tensor and the attention weights `(B, T, S)`.

    Source: Bahdanau, Cho and Bengio 2015, Neural Machine Translation by Jointly Learning to Align
    and Translate, appendix A.1.2.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        dtype = self.dtype_policy
        self.query_projection = Dense(units, use_bias=False, dtype=dtype, name="query")
        self.key_projection = Dense(units, dtype=dtype, name="key")
        self.score_projection = Dense(1, use_bias=False, dtype=dtype, name="score")

    def build(self, query_shape: Any, key_shape: Any) -> None:
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.score_projection.build((None, None, None, self.units))
        self.built = True

    def call(
        self,
        query: Any,
        key: Any,
        value: Any = None,
        padding_mask: Any = None,
        return_attention_weights: bool = False,
        key_mask: Any = None,
    ) -> Any:
        output, weights = self.attend(
            query,
            self.key_projection(key),
            key if value is None else value,
            key_mask if padding_mask is None else padding_mask,
        )
        record_attention(self, "cross", weights)
        return (output, weights) if return_attention_weights else output

    def attend(
        self, query: Any, projected_key: Any, value: Any, padding_mask: Any = None
    ) -> tuple[Any, Any]:
        """Computes attention to keys that `key_projection` has projected.

        A loop over queries projects the keys once and then calls this method for each query.

        Args:
            query: float tensor `(B, T, D_q)`.
            projected_key: float tensor `(B, S, units)`, the result of `key_projection`.
            value: float tensor `(B, S, D_v)`.
            padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.

        Returns:
            A tuple of the output `(B, T, D_v)` and the attention weights `(B, T, S)`.
        """
        queries = ops.expand_dims(self.query_projection(query), 2)
        hidden = ops.tanh(queries + ops.expand_dims(projected_key, 1))  # (B, T, S, units)
        scores = ops.cast(ops.squeeze(self.score_projection(hidden), -1), "float32")
        if padding_mask is not None:
            scores = ops.where(padding_mask[:, None, :], scores, MASKED_SCORE)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        return ops.matmul(weights, value), weights
