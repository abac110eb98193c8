"""The convolutional sequence-to-sequence model, as a functional Keras model."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import (
    ConvolutionalDecoderLayer,
    ConvolutionalEncoderLayer,
    Dropout,
    LearnedPositionalEncoding,
    padding_mask,
)
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.base import Dense
from keras_transformer.layers.convolutional_encoder_layer import HALF_VARIANCE
from keras_transformer.models.seq2seq import Seq2Seq, ids_inputs, token_embeddings

# Initial standard deviation of the embeddings (§3.5). `TokenEmbedding` has 1.
_EMBEDDING_SCALE = 0.1


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionalSeq2Seq(Seq2Seq):
    """Convolutional encoder and decoder with gated linear units and multi-step attention.

    Unlike in the paper, one matrix is both target embedding and output projection (Press and Wolf
    2017), there is no weight normalization, and the encoder's gradients are not scaled.

    Example:

    >>> model = ConvolutionalSeq2Seq(vocabulary_size=8000)
    >>> logits = model({"source_ids": source_ids, "target_ids": target_ids})     # (B, T, 8000)

    Args:
        vocabulary_size, target_vocabulary_size, pad_id, dtype: See `Transformer`.
        num_layers: Number of encoder layers. Defaults to 20.
        num_decoder_layers: Number of decoder layers. Defaults to `num_layers`.
        d_model: Width D of the convolutions. Defaults to 512.
        d_embedding: Width E of the embeddings. Defaults to 512.
        kernel_size: Number of positions that a convolution reads. Defaults to 3.
        dropout_rate: Dropout rate, in [0, 1), for embeddings, the input of each convolution, and
            the decoder's output. Defaults to 0.2.
        max_length: Maximum sequence length in tokens, which is the number of learned position
            embeddings. Defaults to 1024.

    For the call arguments and the result, see `Transformer`.

    Raises:
        ValueError: If a sequence has more than `max_length` tokens (see
            `LearnedPositionalEncoding`).

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning.
    """

    architecture = "convolutional"
    presets = {
        "tiny": {"num_layers": 4, "d_model": 256, "d_embedding": 256, "dropout_rate": 0.2},
        # §4.2: WMT16 English-Romanian.
        "base": {"num_layers": 20, "d_model": 512, "d_embedding": 512, "dropout_rate": 0.2},
    }

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 20,
        num_decoder_layers: int | None = None,
        d_model: int = 512,
        d_embedding: int = 512,
        kernel_size: int = 3,
        dropout_rate: float = 0.2,
        max_length: int = 1024,
        pad_id: int = 0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        decoder_depth = num_layers if num_decoder_layers is None else num_decoder_layers
        source_embedding, target_embedding = token_embeddings(
            vocabulary_size, target_vocabulary_size, pad_id, d_embedding, policy
        )
        source_positions, positions = (
            LearnedPositionalEncoding(max_length, dtype=policy, name=f"{side}_positions")
            for side in ("source", "target")
        )
        dropout = Dropout(dropout_rate, dtype=policy, name="dropout")
        sizes = {"kernel_size": kernel_size, "dropout_rate": dropout_rate, "dtype": policy}
        encoder = [
            ConvolutionalEncoderLayer(d_model, name=f"encoder_layer_{i}", **sizes)
            for i in range(1, num_layers + 1)
        ]
        decoder = [
            ConvolutionalDecoderLayer(
                d_model, d_embedding=d_embedding, name=f"decoder_layer_{i}", **sizes
            )
            for i in range(1, decoder_depth + 1)
        ]
        encoder_input, encoder_output, decoder_input, decoder_output = (
            Dense(width, kernel_initializer="lecun_normal", dtype=policy, name=f"{side}_{end}")
            for side in ("encoder", "decoder")
            for end, width in (("input", d_model), ("output", d_embedding))
        )

        # As layers, because a functional model rounds Python's numbers to Keras's `floatx`.
        scale, halve_variance = (
            keras.layers.Rescaling(factor, dtype=policy, name=name)
            for name, factor in (("scale", _EMBEDDING_SCALE), ("half_variance", HALF_VARIANCE))
        )
        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        embedded = dropout(source_positions(scale(source_embedding(source_ids))))
        x = encoder_input(embedded)
        for layer in encoder:
            x = layer(x, padding_mask=mask)
        key = encoder_output(x)
        value = halve_variance(key + embedded)
        embeddings = dropout(positions(scale(target_embedding(target_ids))))
        y = decoder_input(embeddings)
        for layer in decoder:
            y = layer(y, embeddings=embeddings, key=key, value=value, memory_padding_mask=mask)
        states = dropout(decoder_output(y))
        logits = target_embedding(states, reverse=True)
        super().__init__(inputs, logits, **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.d_model = d_model
        self.d_embedding = d_embedding
        self.kernel_size = kernel_size
        self.dropout_rate = dropout_rate
        self.max_length = max_length
        self.pad_id = pad_id
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.positions = positions
        self.decoder_layers = decoder
        self.decoder_input = decoder_input
        self.decoder_output = decoder_output
        self.states = states
        self._encode = keras.Function(source_ids, [key, value])

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: Any = 1) -> Cache:
        """Encodes the sources and returns the cache (see `Searchable.init_cache`).

        The cache contains the last inputs of each convolution of each hypothesis, and the encoder's
        output.

        Raises:
            ValueError: If `max_length` exceeds the number of position embeddings.
        """
        self.positions.check_length(max_length or 0)
        key, value = self._encode(source_ids)
        shape = (ops.shape(source_ids)[0], beam_size, self.kernel_size - 1, self.d_model)
        return Cache(
            beam=[ops.zeros(shape, self.compute_dtype) for _ in self.decoder_layers],
            sentence={
                "key": key,
                "value": value,
                "padding_mask": padding_mask(source_ids, self.pad_id),
            },
        )

    def step(
        self,
        token_ids: Any,
        cache: Cache,
        position: Any,
        return_attention_weights: bool = False,
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam (see `Searchable.step`).

        The attention weights are the mean over all layers.
        """
        sentence = cache.sentence
        memory = sentence["key"], sentence["value"], sentence["padding_mask"]
        x = self._embed_step(token_ids, cache) * _EMBEDDING_SCALE
        x = self.positions(x, offset=position)
        embeddings = ops.reshape(x, (*ops.shape(token_ids), self.d_embedding))
        y, past, weights = self.decoder_input(embeddings), [], []
        for layer, own in zip(self.decoder_layers, cache.beam, strict=True):
            y, *found = layer.step(y, own, embeddings, *memory)
            past.append(found[0])
            weights.append(found[1])
        states = ops.reshape(self.decoder_output(y), (-1, self.d_embedding))
        logits, cache = self._step_logits(states, token_ids, cache), cache._replace(beam=past)
        if return_attention_weights:
            return logits, cache, _mean(weights)
        return logits, cache

    def source_attention(self, source_ids: Any, target_ids: Any) -> Any:
        """Returns the attention weights from target to source tokens (see `Searchable`).

        The weights, float32 `(B, N, T, S)`, are the mean over all layers, and 0 for padding.
        """
        _, beams, length = ops.shape(target_ids)
        key, value, mask = (
            ops.repeat(x, beams, axis=0)
            for x in (*self._encode(source_ids), padding_mask(source_ids, self.pad_id))
        )
        x = self.target_embedding(ops.reshape(target_ids, (-1, length))) * _EMBEDDING_SCALE
        embeddings = self.positions(x)
        y, weights = self.decoder_input(embeddings), []
        for layer in self.decoder_layers:
            memory = {"key": key, "value": value, "memory_padding_mask": mask}
            y, own = layer(y, embeddings=embeddings, **memory, return_attention_weights=True)
            weights.append(own)
        return self._source_attention(_mean(weights), source_ids, target_ids)


def _mean(weights: list[Any]) -> Any:
    """Returns the mean of equally shaped tensors, in float32."""
    return sum(ops.cast(own, "float32") for own in weights) / len(weights)
