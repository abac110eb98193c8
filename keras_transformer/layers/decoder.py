"""Decoder layer and stack of decoder layers (right half of Figure 1)."""

from typing import Any

import keras

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_patterns import FullAttention
from keras_transformer.layers.attention.decoding_step import DecodingStep
from keras_transformer.layers.base import given_mask
from keras_transformer.layers.encoder import EncoderLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(EncoderLayer):
    """Applies causal self-attention, cross-attention and a feed-forward network (§3.1).

    With `use_memory=False`, the layer has no cross-attention, as in GPT.

    Example:

    >>> layer = DecoderLayer(d_model=64, num_heads=4, d_ff=256)
    >>> y = layer(y, memory=memory, memory_padding_mask=source_ids != 0)

    Args:
        d_model, num_heads, d_ff: See `EncoderLayer`.
        use_memory: Whether the layer has cross-attention to the encoder's output. Defaults to True.
        use_causal_mask: Whether position t attends only to positions up to t. Decoding with a cache
            requires True. Defaults to True.
        **options: Other arguments of `EncoderLayer`. With an `attention_pattern`, cross-attention
            uses `FullAttention()`, which does not store all attention scores.

    Call arguments:
        x: float tensor `(B, T, D)`.
        memory: float tensor `(B, S, D_m)`, the encoder's output. Its width D_m may differ from D.
            The argument is required if `use_memory` is True.
        padding_mask: bool tensor `(B, T)`, True = real target token. Padding at the end needs no
            padding mask, because the causal mask hides the end from real tokens. Defaults to None,
            which means the Keras mask of `x`, if any.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None, which
            means the Keras mask of `memory`, if any.
        attention_mask: bool tensor `(B, T, T)`, True = may attend in self-attention. Defaults to
            None.
        memory_attention_mask: bool tensor `(B, T, S)`, True = may attend in cross-attention.
            Defaults to None.
        return_attention_weights: Whether to also return the attention weights. Defaults to False.

    Returns:
        A float tensor `(B, T, D)`. With `return_attention_weights`, the layer returns a tuple of
        this tensor and the cross-attention weights, float `(B, H, T, S)`. If `use_memory` is False,
        the weights are those of self-attention, `(B, H, T, T)`.

    Raises:
        ValueError: If `use_memory` is True and a call has no `memory`, or if `use_memory` is False
            and a call has `memory`.

    Source: Vaswani et al. 2017, Figure 1 (right); for decoders without cross-attention, Radford et
    al. 2018.
    """

    def __init__(
        self,
        d_model: int | None = None,
        num_heads: int = 8,
        d_ff: int = 2048,
        *,
        use_memory: bool = True,
        use_causal_mask: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(None, num_heads, d_ff, use_causal_mask=use_causal_mask, **options)
        self.use_memory = use_memory
        if d_model is not None:
            self._create_sublayers(d_model)

    def _create_sublayers(self, d_model: int) -> None:
        super()._create_sublayers(d_model)
        if self.use_memory:
            pattern = self.attention_pattern and FullAttention()
            self.cross_attention = self._attention("cross_attention", attention_pattern=pattern)
            self.cross_attention_residual = self._residual("cross_attention_residual")

    def build(self, x_shape: Any, memory_shape: Any = None) -> None:
        super().build(x_shape)
        if self.use_memory:
            self.cross_attention.build(x_shape, memory_shape)
            self.cross_attention_residual.build(x_shape)

    def _output_spec(self, x: Any, memory: Any, **options: Any) -> Any:
        self.check_memory(memory)
        return super()._output_spec(x, memory=memory, **options)

    @checkpointable
    def call(
        self,
        x: Any,
        memory: Any = None,
        padding_mask: Any = None,
        memory_padding_mask: Any = None,
        attention_mask: Any = None,
        memory_attention_mask: Any = None,
        return_attention_weights: bool = False,
        mask: Any = None,
        x_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        self.check_memory(memory)
        padding_mask = given_mask(padding_mask, x_mask, mask)
        needs_own_weights = return_attention_weights and not self.use_memory
        x, weights = self._attend(x, padding_mask, attention_mask, needs_own_weights)
        if self.use_memory:
            attended = self.cross_attention(
                query=self.cross_attention_residual.enter(x, padding_mask),
                key=memory,
                padding_mask=given_mask(memory_padding_mask, memory_mask),
                attention_mask=memory_attention_mask,
                return_attention_weights=return_attention_weights,
            )
            attended, weights = attended if return_attention_weights else (attended, None)
            x = self.cross_attention_residual(x, attended, padding_mask)
        x = self.transform(x, padding_mask)
        return (x, weights) if return_attention_weights else x

    def check_memory(self, memory: Any) -> None:
        """Raises `ValueError` if `memory` is missing, or given to a layer that does not use it."""
        if (memory is not None) != self.use_memory:
            raise ValueError(
                "`memory` must be given if and only if `use_memory` is True. "
                f"Received: use_memory={self.use_memory}, memory={memory}"
            )


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(DecodingStep):
    """Stack of decoder layers, with a final norm if the layers are pre-norm (§3.1).

    `init_cache` and `step` decode one token at a time, for models with and without an encoder.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> y = decoder(y, memory=memory, memory_padding_mask=source_ids != 0)          # (B, T, 512)
    >>> gpt = Decoder(12, 768, 12, 3072, use_memory=False, norm_first=True, activation="gelu")

    Args:
        num_layers: Number of layers, at least 1. Defaults to 6, as in the paper.
        d_model, num_heads, d_ff: See `EncoderLayer`.
        **options: Other arguments of `DecoderLayer`. All layers share one position encoding. For a
            list as `attention_pattern`, see `Encoder`.

    For call arguments, result and errors, see `DecoderLayer`. The returned attention weights are
    from the last layer.

    Source: Vaswani et al. 2017, Figure 1 (right); for the final norm, Xiong et al. 2020.
    """

    layer_class = DecoderLayer
    prefix = "decoder"

    def build(self, x_shape: Any, memory_shape: Any = None) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build(x_shape, memory_shape)
        super().build(x_shape)

    def call(
        self,
        x: Any,
        memory: Any = None,
        padding_mask: Any = None,
        memory_padding_mask: Any = None,
        attention_mask: Any = None,
        memory_attention_mask: Any = None,
        return_attention_weights: bool = False,
        mask: Any = None,
        x_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        inputs = {
            "memory": memory,
            "padding_mask": given_mask(padding_mask, x_mask, mask),
            "memory_padding_mask": given_mask(memory_padding_mask, memory_mask),
            "attention_mask": attention_mask,
            "memory_attention_mask": memory_attention_mask,
        }
        return self._apply_layers(x, inputs, return_attention_weights)
