"""Decoder layer of the convolutional sequence-to-sequence model, with multi-step attention."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_records import record_attention
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)
from keras_transformer.layers.base import Dense
from keras_transformer.layers.convolutional_encoder_layer import (
    HALF_VARIANCE,
    ConvolutionalEncoderLayer,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionalDecoderLayer(ConvolutionalEncoderLayer):
    """Applies a causal convolution, a gated linear unit and attention to the encoder's output.

    The convolution reads only the current and earlier positions. Each layer has its own attention,
    so that a layer knows what the layers below attended to (multi-step attention). The scores are
    dot products without scaling.

    Example:

    >>> layer = ConvolutionalDecoderLayer(d_model=256, d_embedding=128)
    >>> x = layer(x, embeddings=y, key=key, value=value, memory_padding_mask=source_ids != 0)

    Args:
        d_model: Width D of input and output.
        kernel_size, dropout_rate: See `ConvolutionalEncoderLayer`.
        d_embedding: Width E of embeddings, keys and values. Defaults to `d_model`.

    Call arguments:
        x: float tensor `(B, T, D)`.
        embeddings: float tensor `(B, T, E)`, the embeddings of the target tokens.
        key: float tensor `(B, S, E)`, the encoder's output.
        value: float tensor `(B, S, E)`, such as the encoder's output plus the source embeddings.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None, which
            means the Keras mask of `key`, if any.
        return_attention_weights: Whether to also return the attention weights. Defaults to False.

    Returns:
        A float tensor `(B, T, D)`. With `return_attention_weights`, the layer returns a tuple of
        this tensor and the attention weights `(B, T, S)`.

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning, §3.2 to §3.4.
    """

    def __init__(
        self,
        d_model: int,
        kernel_size: int = 3,
        dropout_rate: float = 0.1,
        d_embedding: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(d_model, kernel_size, dropout_rate, **kwargs)
        self.d_embedding = d_model if d_embedding is None else d_embedding
        options = {"kernel_initializer": "lecun_normal", "dtype": self.dtype_policy}
        self.query_projection = Dense(self.d_embedding, name="query", **options)
        self.output_projection = Dense(d_model, name="output", **options)

    def build(
        self,
        x_shape: Any,
        embeddings_shape: Any = None,
        key_shape: Any = None,
        value_shape: Any = None,
    ) -> None:
        super().build(x_shape)
        self.query_projection.build(x_shape)
        self.output_projection.build((*x_shape[:-1], self.d_embedding))

    @checkpointable
    def call(
        self,
        x: Any,
        embeddings: Any,
        key: Any,
        value: Any,
        memory_padding_mask: Any = None,
        return_attention_weights: bool = False,
        x_mask: Any = None,
        embeddings_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
    ) -> Any:
        # Keras sets the last four arguments. Padding at the end of `x` needs no mask.
        mask = key_mask if memory_padding_mask is None else memory_padding_mask
        convolved = self._convolve(x, self.kernel_size - 1, 0)
        output, weights = self._attend(x, convolved, embeddings, key, value, mask)
        record_attention(self, "cross", weights)
        return (output, weights) if return_attention_weights else output

    def _attend(
        self, x: Any, convolved: Any, embeddings: Any, key: Any, value: Any, mask: Any
    ) -> tuple[Any, Any]:
        """Adds the attention's result to `convolved`, and the layer's input `x` to the sum."""
        query = (self.query_projection(convolved) + embeddings) * HALF_VARIANCE
        length = ops.zeros((1, 1), "int32") + ops.shape(key)[1]
        if mask is not None:
            mask = ops.cast(mask, "bool")
            length = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
            mask = mask[:, None]
        context, weights = scaled_dot_product_attention(
            query, key, value, attention_mask=mask, use_scale=False
        )
        # A mean of n independent vectors has 1 / n of their variance (§3.5).
        scale = ops.sqrt(ops.cast(length, "float32"))[..., None]
        context = context * ops.cast(scale, self.compute_dtype)
        attended = (convolved + self.output_projection(context)) * HALF_VARIANCE
        return (x + attended) * HALF_VARIANCE, weights

    def step(
        self, x: Any, past: Any, embeddings: Any, key: Any, value: Any, memory_padding_mask: Any
    ) -> tuple[Any, Any, Any]:
        """Decodes one new token per hypothesis.

        Args:
            x: float tensor `(B, N, D)`, one vector for the new token of each hypothesis.
            past: float tensor `(B, N, kernel_size - 1, D)`, the inputs `x` of the steps before.
                Before the first step, they are zeros.
            embeddings: float tensor `(B, N, E)`, the embeddings of the new tokens.
            key: float tensor `(B, S, E)`.
            value: float tensor `(B, S, E)`.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token, or None.

        Returns:
            A tuple of the output `(B, N, D)`, the new `past`, and the attention weights
            `(B, N, S)`.
        """
        window = ops.concatenate([past, x[:, :, None]], axis=2)
        flat = ops.reshape(window, (*ops.shape(x)[:2], self.kernel_size * self.d_model))
        convolved = self._gated(flat)
        output, weights = self._attend(x, convolved, embeddings, key, value, memory_padding_mask)
        return output, window[:, :, 1:], weights
