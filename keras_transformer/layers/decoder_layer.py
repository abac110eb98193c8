"""The right half of Figure 1."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.full_attention import FullAttention
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(EncoderLayer):
    """An encoder layer whose self-attention is causal, with cross-attention to the memory (§3.1).

    Example:

    >>> layer = DecoderLayer(d_model=64, num_heads=4, d_ff=256)
    >>> y = layer(y, memory=memory, memory_padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input, memory and output.
        num_heads: Number of attention heads H.
        d_ff: Width F of the feed-forward network.
        dropout_rate: Dropout on the output of each sublayer, in [0, 1). Defaults to 0.1.
        activation: Activation of the feed-forward network. Defaults to `"relu"`.
        norm_first: Pre-norm instead of the paper's post-norm. Defaults to False.
        position_encoding: `PositionalEncoding` that turns the queries and keys of self-attention.
            Defaults to None.
        attention_pattern: `AttentionPattern` of self-attention, for long sequences. Where there is
            one, cross-attention has `FullAttention()`: all to all, in linear memory too. Defaults
            to None: all to all.

    Call arguments:
        x: float tensor `(B, T, D)`.
        memory: float tensor `(B, S, D)`, the encoder's output.
        padding_mask: bool tensor `(B, T)`, True = real target token. Not needed where padding
            follows the real tokens, since no real token sees it. Defaults to None.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None.
        return_attention_weights: Whether to return the attention to the memory too. Defaults to
            False.

    Returns:
        A float tensor `(B, T, D)`; with `return_attention_weights` also the weights, float
        `(B, H, T, S)`.

    Source: Vaswani et al. 2017, Figure 1 (right).
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
        super().__init__(
            d_model,
            num_heads,
            d_ff,
            dropout_rate,
            activation,
            norm_first,
            position_encoding,
            attention_pattern,
            **kwargs,
        )
        self.cross_attention = MultiHeadAttention(
            d_model,
            num_heads,
            attention_pattern=attention_pattern and FullAttention(),
            dtype=self.dtype_policy,
            name="cross_attention",
        )
        self.cross_attention_residual = self._residual("cross_attention_residual")

    def build(self, x_shape: Any) -> None:
        super().build(x_shape)
        self.cross_attention.build(x_shape)
        self.cross_attention_residual.build(x_shape)

    @checkpointable
    def call(
        self,
        x: Any,
        memory: Any,
        padding_mask: Any = None,
        memory_padding_mask: Any = None,
        return_attention_weights: bool = False,
    ) -> Any:
        attended = self.self_attention(
            query=self.self_attention_residual.enter(x),
            padding_mask=padding_mask,
            use_causal_mask=True,
        )
        x = self.self_attention_residual(x, attended)
        attended = self.cross_attention(
            query=self.cross_attention_residual.enter(x),
            key=memory,
            padding_mask=memory_padding_mask,
            return_attention_weights=return_attention_weights,
        )
        attended, weights = attended if return_attention_weights else (attended, None)
        x = self._transform(self.cross_attention_residual(x, attended))
        return (x, weights) if return_attention_weights else x

    def step(
        self,
        x: Any,
        cache: Any,
        projections: dict[str, Any],
        attention_mask: Any,
        memory: Any,
        memory_padding_mask: Any,
        position: Any,
    ) -> tuple[Any, Any, Any]:
        """Decodes one new token per hypothesis.

        Args:
            x: float tensor `(B * N, D)`, the tokens at `position` of N hypotheses a sentence.
            cache: The self-attention's cache, `MultiHeadAttention.init_cache`.
            projections: Those of the self-attention, `MultiHeadAttention.fuse_projections`.
            attention_mask: bool tensor `(B * H, N, L * N)`, see `MultiHeadAttention.step`.
            memory: The projected memory, `MultiHeadAttention.project_memory`.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token.
            position: Position of the tokens, an int or a 0-d int tensor.

        Returns:
            A tuple of the output `(B * N, D)`, the updated cache, and the weights of the attention
            to the memory, float `(B, H, N, S)`.
        """
        query = self.self_attention_residual.enter(x)
        attended, cache = self.self_attention.step(
            query, cache, projections, attention_mask, position
        )
        x = self.self_attention_residual(x, attended)
        query = self.cross_attention_residual.enter(x)
        attended, weights = self.cross_attention.attend_step(
            query, memory, memory_padding_mask[:, None, :], ops.shape(attention_mask)[1]
        )
        x = self.cross_attention_residual(x, attended)
        return self._transform(x), cache, weights

    def _transform(self, x: Any) -> Any:
        transformed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual(x, transformed)
