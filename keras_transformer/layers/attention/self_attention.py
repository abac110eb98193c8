"""Self-attention with a single head."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.masks import both_masks, causal_mask
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)
from keras_transformer.layers.dense import Dense


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(keras.layers.Layer):
    """One head of self-attention, without output projection: equation 1 made a layer (§3.2.1).

    The step between `scaled_dot_product_attention` and `MultiHeadAttention`.

    Example:

    >>> SelfAttention(d_k=64)(x, padding_mask=ids != 0).shape      # (B, T, 64)

    Args:
        d_k: Width K of query and key.
        d_v: Width of the value and the output. Defaults to `d_k`.
        use_scale: Whether scores are divided by sqrt(d_k). Defaults to True.

    Call arguments:
        x: float tensor `(B, T, D)`.
        padding_mask: bool tensor `(B, T)`, True = real token. Defaults to None: the Keras mask that
            `x` carries.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        return_attention_weights: Whether to return the weights too. Defaults to False.

    Returns:
        A float tensor `(B, T, d_v)`; with `return_attention_weights` a tuple of it and the weights
        `(B, T, T)`.

    Source: Vaswani et al. 2017, §3.2.1.
    """

    def __init__(
        self, d_k: int, d_v: int | None = None, use_scale: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_k = d_k
        self.d_v = d_k if d_v is None else d_v
        self.use_scale = use_scale
        dtype = self.dtype_policy
        self.query_projection = Dense(self.d_k, dtype=dtype, name="query")
        self.key_projection = Dense(self.d_k, dtype=dtype, name="key")
        self.value_projection = Dense(self.d_v, dtype=dtype, name="value")

    def build(self, x_shape: Any) -> None:
        for projection in (self.query_projection, self.key_projection, self.value_projection):
            projection.build(x_shape)
        self.built = True

    def call(
        self,
        x: Any,
        padding_mask: Any = None,
        use_causal_mask: bool = False,
        return_attention_weights: bool = False,
        mask: Any = None,
    ) -> Any:
        padding_mask = mask if padding_mask is None else padding_mask
        attention_mask = causal_mask(ops.shape(x)[1]) if use_causal_mask else None
        if padding_mask is not None:
            attention_mask = both_masks(attention_mask, padding_mask[:, None, :])
        output, weights = scaled_dot_product_attention(
            self.query_projection(x),
            self.key_projection(x),
            self.value_projection(x),
            attention_mask=attention_mask,
            use_scale=self.use_scale,
        )
        return (output, weights) if return_attention_weights else output

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "d_k": self.d_k, "d_v": self.d_v, "use_scale": self.use_scale}
