"""Encoder layer and stack of encoder layers (left half of Figure 1)."""

from itertools import cycle
from typing import Any

import keras

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.errors import check_sizes
from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.base import ConfiguredLayer, initializer_config
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.residual_connection import (
    ResidualConnection,
    new_norm,
    normalize,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ConfiguredLayer):
    """Applies self-attention and a feed-forward network, with residual connections (§3.1).

    Example:

    >>> x = EncoderLayer(d_model=64, num_heads=4, d_ff=256)(x, padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input and output.
        num_heads: Number of attention heads H.
        d_ff: Width F of the feed-forward network.
        d_k: Width K of queries and keys in each head. Values always have the width
            `d_model // num_heads`, which is also the default of `d_k`.
        dropout_rate: Dropout rate of the output of each sublayer, in [0, 1). Defaults to 0.1.
        attention_dropout_rate: Dropout rate of the attention weights, in [0, 1). Defaults to 0.
        use_scale: Whether attention scores are divided by sqrt(d_k). Defaults to True.
        activation: Activation of the feed-forward network. Defaults to `"relu"`.
        norm_first, norm_epsilon, normalization: See `ResidualConnection`.
        kernel_initializer: Initializer of all kernels. Defaults to `"glorot_uniform"`.
        position_encoding, attention_pattern: Used in self-attention. See `MultiHeadAttention`.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.

    Call arguments:
        x: float tensor `(B, S, D)`.
        padding_mask: bool tensor `(B, S)`, True = real token. Defaults to None, which means the
            Keras mask of `x`, if any.

    Returns:
        A float tensor `(B, S, D)`.

    Source: Vaswani et al. 2017, Figure 1 (left).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        d_k: int | None = None,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        use_scale: bool = True,
        activation: str = "relu",
        norm_first: bool = False,
        norm_epsilon: float = 1e-6,
        normalization: str = "layer",
        kernel_initializer: Any = "glorot_uniform",
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        use_causal_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(d_model=d_model, num_heads=num_heads)
        if d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model`. "
                f"Received: num_heads={num_heads}, d_model={d_model}"
            )
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.d_k = d_k
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.use_scale = use_scale
        self.activation = activation
        self.norm_first = norm_first
        self.norm_epsilon = norm_epsilon
        self.normalization = normalization
        self.kernel_initializer = initializer_config(kernel_initializer)
        self.position_encoding = position_encoding
        self.attention_pattern = attention_pattern
        self.use_causal_mask = use_causal_mask
        self.self_attention = self._attention(
            "self_attention",
            position_encoding=position_encoding,
            attention_pattern=attention_pattern,
        )
        self.self_attention_residual = self._residual("self_attention_residual")
        self.feed_forward = FeedForward(
            d_model,
            d_ff,
            activation,
            self.kernel_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _attention(self, name: str, **options: Any) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            self.d_k,
            self.d_model // self.num_heads,
            dropout_rate=self.attention_dropout_rate,
            use_scale=self.use_scale,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def _residual(self, name: str) -> ResidualConnection:
        return ResidualConnection(
            self.dropout_rate,
            self.norm_first,
            self.norm_epsilon,
            self.normalization,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape: Any) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_residual.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_residual.build(x_shape)
        self.built = True

    def _output_spec(self, x: Any, **_: Any) -> Any:
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    @checkpointable
    def call(self, x: Any, padding_mask: Any = None, mask: Any = None) -> Any:
        padding_mask = mask if padding_mask is None else padding_mask
        return self._transform(self._attend(x, padding_mask), padding_mask)

    def _attend(self, x: Any, padding_mask: Any) -> Any:
        attended = self.self_attention(
            query=self.self_attention_residual.enter(x, padding_mask),
            padding_mask=padding_mask,
            use_causal_mask=self.use_causal_mask,
        )
        return self.self_attention_residual(x, attended, padding_mask)

    def _transform(self, x: Any, padding_mask: Any = None) -> Any:
        transformed = self.feed_forward(self.feed_forward_residual.enter(x, padding_mask))
        return self.feed_forward_residual(x, transformed, padding_mask)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(ConfiguredLayer):
    """Stack of encoder layers, with a final norm if the layers are pre-norm (§3.1).

    Example:

    >>> encoder = Encoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> memory = encoder(x, padding_mask=source_ids != 0)                           # (B, S, 512)

    Args:
        num_layers: Number of layers, at least 1.
        d_model, num_heads, d_ff: See `EncoderLayer`.
        **options: Other arguments of `EncoderLayer`. All layers share one position encoding. If
            `attention_pattern` is a list, layer i has its entry i modulo the length of the list.

    For call arguments and result, see `EncoderLayer`.

    Raises:
        ValueError: If `num_layers` is not an integer of at least 1.

    Attributes:
        layers: List of the layers. Each argument of a layer is also an attribute of the stack.
        norm: The final normalization, or None if the layers are post-norm.

    Source: Vaswani et al. 2017, Figure 1 (left); for the final norm, Xiong et al. 2020.
    """

    layer_class: type[EncoderLayer] = EncoderLayer
    prefix = "encoder"

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        check_sizes(num_layers=num_layers)
        self.supports_masking = True
        self.num_layers = num_layers
        options = {**options, "dtype": self.dtype_policy}
        pattern = options.pop("attention_pattern", None)
        if pattern == []:
            raise ValueError("`attention_pattern` must not be an empty list.")
        patterns = cycle(pattern if isinstance(pattern, list) else [pattern])
        self.layers: list[Any] = [
            self.layer_class(
                d_model,
                num_heads,
                d_ff,
                name=f"{self.prefix}_layer_{i}",
                attention_pattern=next(patterns),
                **options,
            )
            for i in range(1, num_layers + 1)
        ]
        for option in self.layer_class.argument_names():
            setattr(self, option, getattr(self.layers[0], option))
        self.attention_pattern = pattern
        self.norm = None
        if self.layers[0].norm_first:
            kind, epsilon = self.layers[0].normalization, self.layers[0].norm_epsilon
            name = f"{self.prefix}_norm"
            self.norm = new_norm(kind, epsilon, dtype=self.dtype_policy, name=name)

    def build(self, x_shape: Any) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build(x_shape)
        if self.norm is not None and not self.norm.built:
            self.norm.build(x_shape)
        self.built = True

    def call(self, x: Any, padding_mask: Any = None, mask: Any = None) -> Any:
        padding_mask = mask if padding_mask is None else padding_mask
        for layer in self.layers:
            x = layer(x, padding_mask=padding_mask)
        return self._normalize(x, padding_mask)

    def _normalize(self, x: Any, padding_mask: Any = None) -> Any:
        return x if self.norm is None else normalize(self.norm, x, padding_mask)

    @classmethod
    def argument_names(cls) -> list[str]:
        return list(dict.fromkeys(super().argument_names() + cls.layer_class.argument_names()))
