"""The left half of Figure 1."""

from typing import Any

import keras

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.residual_connection import ResidualConnection


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(keras.layers.Layer):
    """Self-attention, then a feed-forward network, each with residual and norm (§3.1).

    Example:

    >>> x = EncoderLayer(d_model=64, num_heads=4, d_ff=256)(x, padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input and output.
        num_heads: Number of attention heads H.
        d_ff: Width F of the feed-forward network.
        dropout_rate: Dropout on the output of each sublayer, in [0, 1). Defaults to 0.1.
        activation: Activation of the feed-forward network. Defaults to `"relu"`.
        norm_first: Pre-norm instead of the paper's post-norm. Defaults to False.
        position_encoding: `PositionalEncoding` that turns queries and keys. Defaults to None.
        attention_pattern: `AttentionPattern` for long sequences. Defaults to None: all to all.

    Call arguments:
        x: float tensor `(B, S, D)`.
        padding_mask: bool tensor `(B, S)`, True = real token. Defaults to None.

    Returns:
        A float tensor `(B, S, D)`.

    Source: Vaswani et al. 2017, Figure 1 (left).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout_rate: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.activation = activation
        self.norm_first = norm_first
        self.position_encoding = position_encoding
        self.attention_pattern = attention_pattern
        dtype = self.dtype_policy
        self.self_attention = MultiHeadAttention(
            d_model,
            num_heads,
            position_encoding=position_encoding,
            attention_pattern=attention_pattern,
            dtype=dtype,
            name="self_attention",
        )
        self.self_attention_residual = self._residual("self_attention_residual")
        self.feed_forward = FeedForward(d_model, d_ff, activation, dtype=dtype, name="feed_forward")
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _residual(self, name: str) -> ResidualConnection:
        return ResidualConnection(
            self.dropout_rate, self.norm_first, dtype=self.dtype_policy, name=name
        )

    def build(self, x_shape: Any) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_residual.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_residual.build(x_shape)
        self.built = True

    @checkpointable
    def call(self, x: Any, padding_mask: Any = None) -> Any:
        attended = self.self_attention(
            query=self.self_attention_residual.enter(x), padding_mask=padding_mask
        )
        x = self.self_attention_residual(x, attended)
        transformed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual(x, transformed)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "activation": self.activation,
            "norm_first": self.norm_first,
            "position_encoding": keras.saving.serialize_keras_object(self.position_encoding),
            "attention_pattern": keras.saving.serialize_keras_object(self.attention_pattern),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EncoderLayer":
        objects = {
            name: keras.saving.deserialize_keras_object(config.get(name))
            for name in ("position_encoding", "attention_pattern")
        }
        return cls(**{**config, **objects})
