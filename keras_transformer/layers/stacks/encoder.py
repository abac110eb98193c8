"""Encoder layer and stack of encoder layers (left half of Figure 1)."""

from itertools import cycle
from typing import Any

import keras

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer._backend.types import LayerMaker, Mask, Rule, Shape, Tensor
from keras_transformer.layers.attention.attention_patterns import AttentionPattern
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.base import (
    BASE_ARGUMENTS,
    ConfiguredLayer,
    dense_options,
    given_mask,
    registered,
    taken_arguments,
)
from keras_transformer.layers.normalization import NORMALIZATIONS, normalize
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.sublayers import ResidualConnection, new_feed_forward


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ConfiguredLayer):
    """Applies self-attention and a feed-forward network, with residual connections (§3.1).

    Example:

    >>> x = EncoderLayer(d_model=64, num_heads=4, d_ff=256)(x, padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input and output. Defaults to None: the width of the first input.
        num_heads: Number of attention heads H. Defaults to 8, as in the paper.
        d_ff: Width F of the feed-forward network. Defaults to 2048, as in the paper.
        d_k, d_v: Width of queries and keys, and width of values, in each head. Both default to
            `d_model // num_heads`.
        dropout_rate: Dropout rate of the output of each sublayer, in [0, 1). Defaults to 0.1.
        attention_dropout_rate: Dropout rate of the attention weights, in [0, 1). Defaults to 0.
        use_scale: Whether attention scores are divided by sqrt(d_k) (§3.2.1). Defaults to True.
        activation: An activation of `FeedForward`, `"swiglu"` or `"geglu"` (see
            `GatedFeedForward`), or the name of a class that `feed_forward` in layers/sublayers.py
            registers. For initializers and regularizers of all linear maps, see `FeedForward`.
        norm_first, norm_epsilon, normalization: See `ResidualConnection`.
        position_encoding, attention_pattern: Used in self-attention. See `MultiHeadAttention`.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_bias: Whether all linear maps have biases. Defaults to True.
        num_kv_heads, qk_norm, attention_soft_cap: See `MultiHeadAttention`.

    Call arguments:
        x: float tensor `(B, S, D)`.
        padding_mask: bool tensor `(B, S)`, True = real token. Defaults to the Keras mask of `x`, if
            any.
        attention_mask: bool tensor `(B, S, S)`, True = may attend. See `MultiHeadAttention` for
            other shapes. Defaults to None.
        return_attention_weights: Whether to return a tuple of the output and the attention weights,
            float `(B, H, S, S)`. Defaults to False.

    Returns:
        A float tensor `(B, S, D)`.

    Source: Vaswani et al. 2017, Figure 1 (left).
    """

    takes_attention_mask = True  # False: self-attention refuses one

    def __init__(
        self,
        d_model: int | None = None,
        num_heads: int = 8,
        d_ff: int = 2048,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        use_scale: bool = True,
        activation: str = "relu",
        norm_first: bool = False,
        norm_epsilon: float = 1e-6,
        normalization: str = "layer",
        kernel_initializer: Rule = "glorot_uniform",
        bias_initializer: Rule = "zeros",
        kernel_regularizer: Rule = None,
        bias_regularizer: Rule = None,
        position_encoding: PositionalEncoding | None = None,
        attention_pattern: AttentionPattern | None = None,
        use_causal_mask: bool = False,
        use_bias: bool = True,
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        attention_soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        if d_model is not None:
            self._create_sublayers(d_model)

    def _create_sublayers(self, d_model: int) -> None:
        self.d_model = d_model
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self.self_attention = self._self_attention("self_attention")
        self.self_attention_residual = self._residual("self_attention_residual")
        sizes = {"d_model": d_model, "d_ff": self.d_ff, "name": "feed_forward"}
        self.feed_forward = new_feed_forward(self.activation, **sizes, **dense_options(self))
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _self_attention(self, name: str) -> Any:
        objects = {x: getattr(self, x) for x in ("position_encoding", "attention_pattern")}
        return self._attention(name, **objects)

    def _attention(self, name: str, **options: Any) -> MultiHeadAttention:
        names = ("d_k", "use_scale", "num_kv_heads", "qk_norm", "attention_soft_cap")
        options |= {x: getattr(self, x) for x in (*names, "norm_epsilon")} | dense_options(self)
        options |= {"d_v": self.d_v or self.d_model // self.num_heads}
        options |= {"dropout_rate": self.attention_dropout_rate}
        return MultiHeadAttention(self.d_model, self.num_heads, name=name, **options)

    def _residual(self, name: str) -> ResidualConnection:
        options = self.dropout_rate, self.norm_first, self.norm_epsilon, self.normalization
        return ResidualConnection(*options, dtype=self.dtype_policy, name=name)

    def build(self, x_shape: Shape) -> None:
        if self.d_model is None:
            self._create_sublayers(x_shape[-1])
        self.self_attention.build(x_shape)
        self.self_attention_residual.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_residual.build(x_shape)

    def _output_spec(
        self, x: Tensor, return_attention_weights: bool, memory: Tensor | None = None, **_: Any
    ) -> Any:
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        if not return_attention_weights:
            return output
        num_keys = (x if memory is None else memory).shape[1]
        shape = (x.shape[0], self.num_heads, x.shape[1], num_keys)
        return output, keras.KerasTensor(shape, self.compute_dtype)

    @checkpointable
    def call(
        self,
        x: Tensor,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        return_attention_weights: bool = False,
        mask: Mask | None = None,
        x_mask: Mask | None = None,
    ) -> Any:
        padding_mask = given_mask(padding_mask, x_mask, mask)
        x, weights = self._attend(x, padding_mask, attention_mask, return_attention_weights)
        x = self.transform(x, padding_mask)
        return (x, weights) if return_attention_weights else x

    def _attend(
        self,
        x: Tensor,
        padding_mask: Mask | None,
        attention_mask: Mask | None,
        return_attention_weights: bool,
    ) -> tuple[Any, Any]:
        """Applies the first sublayer. Returns its output, and the attention weights or None."""
        attended = self.self_attention(
            query=self.self_attention_residual.enter(x, padding_mask),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=self.use_causal_mask,
            return_attention_weights=return_attention_weights,
        )
        attended, weights = attended if return_attention_weights else (attended, None)
        return self.self_attention_residual(x, attended, padding_mask), weights

    def transform(self, x: Tensor, padding_mask: Mask | None = None) -> Any:
        """Applies the last sublayer, the feed-forward network."""
        transformed = self.feed_forward(self.feed_forward_residual.enter(x, padding_mask))
        return self.feed_forward_residual(x, transformed, padding_mask)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(ConfiguredLayer):
    """Stack of encoder layers, with a final norm if the layers are pre-norm (§3.1).

    Example:

    >>> encoder = Encoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> memory = encoder(x, padding_mask=source_ids != 0)                           # (B, S, 512)

    Args:
        num_layers: Number of layers, at least 1. Defaults to 6, as in the paper.
        d_model, num_heads, d_ff: See `EncoderLayer`.
        layer: Class of the layers, or a function that returns a new layer. It gets those of the
            stack's arguments that it names. To save the stack, register it with
            `keras.saving.register_keras_serializable`. Its `call` takes the masks that are given
            to the stack, by the names of `EncoderLayer`. Defaults to None: `EncoderLayer`.
        **options: Other arguments of the layers. All layers share one position encoding. If
            `attention_pattern` is a list, layer i has its entry i modulo the length of the list.

    For call arguments and result, see `EncoderLayer`. The returned attention weights are from the
    last layer. `layers` is the tuple of the layers, and each argument of a layer is also an
    attribute of the stack. `norm` is the final norm, or None for post-norm.

    Source: Vaswani et al. 2017, Figure 1 (left); for the final norm, Xiong et al. 2020.
    """

    layer_class: type[EncoderLayer] = EncoderLayer
    prefix = "encoder"

    def __init__(
        self,
        num_layers: int = 6,
        d_model: int | None = None,
        num_heads: int = 8,
        d_ff: int = 2048,
        layer: LayerMaker = None,
        **options: Any,
    ) -> None:
        super().__init__(**{name: options.pop(name) for name in BASE_ARGUMENTS & options.keys()})
        self.num_layers, self.layer = num_layers, registered(layer)
        pattern, names = options.get("attention_pattern") or None, self.layer_class.argument_names()
        # Those that only a layer of the user's has.
        self.own_options = {x: options.pop(x) for x in options.keys() - {*names}}
        options |= {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff}
        patterns = cycle(pattern if isinstance(pattern, list) else [pattern])
        # A tuple, because the graph of a model would keep a layer that is replaced in a list.
        self.layers: tuple[Any, ...] = tuple(
            self._new_layer(f"{self.prefix}_layer_{i}", {**options, "attention_pattern": each})
            for i, each in zip(range(1, num_layers + 1), patterns, strict=False)
        )
        # Without a width, this layer makes no sublayers.
        usual = self.layer_class(**{**options, "d_model": None, "name": "options"})
        for option in names:
            setattr(self, option, getattr(usual, option))
        self.d_model = d_model
        self.attention_pattern = pattern
        self.norm: Any = None
        if self.norm_first:
            own = {"dtype": self.dtype_policy, "name": f"{self.prefix}_norm"}
            self.norm = NORMALIZATIONS.new(self.normalization, epsilon=self.norm_epsilon, **own)

    def _new_layer(self, name: str, options: dict[str, Any]) -> Any:
        maker = self.layer or self.layer_class
        options = {**options, "name": name, "dtype": self.dtype_policy}
        return maker(**taken_arguments(maker, options), **self.own_options)

    def takes_masks(self, *names: str) -> bool:
        """Returns whether each layer takes an `attention_mask`, and other masks of these names."""
        masks = dict.fromkeys(("attention_mask", *names))
        return all(
            getattr(layer, "takes_attention_mask", True)
            and taken_arguments(layer.call, masks) == masks
            for layer in self.layers
        )

    def build(self, x_shape: Shape) -> None:
        self._build_layers(x_shape)

    def _build_layers(self, x_shape: Shape, *memory_shape: Shape) -> None:
        inputs = [keras.KerasTensor(x, self.compute_dtype) for x in (x_shape, *memory_shape)]
        for layer in self.layers:
            if not layer.built:  # A layer of the user's may have no `build`.
                layer(*inputs)
        if self.norm is not None and not self.norm.built:
            self.norm.build(x_shape)
        self.d_model = x_shape[-1]

    def call(
        self,
        x: Tensor,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        return_attention_weights: bool = False,
        mask: Mask | None = None,
        x_mask: Mask | None = None,
    ) -> Any:
        padding_mask = given_mask(padding_mask, x_mask, mask)
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return self._apply_layers(x, masks, return_attention_weights)

    def _apply_layers(
        self, x: Tensor, inputs: dict[str, Any], return_attention_weights: bool
    ) -> Any:
        given = {name: value for name, value in inputs.items() if value is not None}
        for layer in self.layers[:-1]:
            x = layer(x, **given)
        if return_attention_weights:
            x, weights = self.layers[-1](x, **given, return_attention_weights=True)
            return self.normalize(x, inputs["padding_mask"]), weights
        return self.normalize(self.layers[-1](x, **given), inputs["padding_mask"])

    def normalize(self, x: Tensor, padding_mask: Mask | None = None) -> Any:
        """Applies the final norm, if the stack has one."""
        return x if self.norm is None else normalize(self.norm, x, padding_mask)

    @classmethod
    def argument_names(cls) -> list[str]:
        return list(dict.fromkeys(super().argument_names() + cls.layer_class.argument_names()))

    def get_config(self) -> dict[str, Any]:
        name = self.layer and keras.saving.get_registered_name(self.layer)
        return {**super().get_config(), "layer": name, **self.own_options}
