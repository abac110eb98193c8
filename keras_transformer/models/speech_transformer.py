"""A Transformer that writes what is said, as a functional Keras model."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Decoder, Dropout, Encoder, TokenEmbedding
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.positions.sinusoidal_positional_encoding import (
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.spectrogram_patches import SpectrogramPatches
from keras_transformer.models.base import ConfiguredModel, check_pad_id, compute_policy


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpeechTransformer(ConfiguredModel):
    """Writes the tokens that are said in a spectrogram, with an encoder and a decoder.

    The encoder reads patches of time and frequency (`SpectrogramPatches`), so its heads attend
    along both. The decoder is that of `Transformer`, with pre-norm, and is searched by the same
    `search`: pass spectrograms instead of source ids.

    Example:

    >>> model = SpeechTransformer(14, num_bands=80, num_layers=4, d_model=128, num_heads=4,
    ...                           d_ff=256)
    >>> logits = model({"features": spectrograms, "target_ids": target_ids})          # (B, L, 14)
    >>> result = search(model, spectrograms, max_length=12)

    Args:
        vocabulary_size: Number of tokens V, with padding, bos and eos.
        num_bands: Frequency bands F of a frame. Defaults to 80.
        patch_frames, patch_bands: See `SpectrogramPatches`.
        num_layers: Number of encoder layers. Defaults to 6.
        num_decoder_layers: Number of decoder layers. Defaults to `num_layers`.
        d_model: Width D. Defaults to 512.
        num_heads: Number of attention heads H. Defaults to 8.
        d_ff: Width of the feed-forward networks. Defaults to 2048.
        dropout_rate: Dropout rate, in [0, 1), of embeddings and sublayer outputs. Defaults to 0.1.
        max_length: Largest `max_length` that a search of this model may have. Defaults to 1024.
        pad_id: Id of padding. Defaults to 0.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: `{"features": float (B, T, F), "target_ids": int (B, L)}`. Spectrograms are padded
            with frames of zeros at the end, and `target_ids`, which start with bos, with `pad_id`.

    Returns:
        The logits, a float tensor `(B, L, V)` in the compute dtype. Row t predicts token t + 1.

    Raises:
        ValueError: If `patch_bands` does not divide `num_bands`, if `num_heads` does not divide
            `d_model`, or if `dtype` is float64.

    Source: Vaswani et al. 2017; Gong et al. 2021 for the patches.
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_bands: int = 80,
        patch_frames: int = 4,
        patch_bands: int = 16,
        num_layers: int = 6,
        num_decoder_layers: int | None = None,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        dropout_rate: float = 0.1,
        max_length: int = 1024,
        pad_id: int = 0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = compute_policy(dtype)
        check_pad_id(pad_id, vocabulary_size)
        options = {
            "d_model": d_model,
            "num_heads": num_heads,
            "d_ff": d_ff,
            "dropout_rate": dropout_rate,
            "norm_first": True,
            "dtype": policy,
        }
        patches = SpectrogramPatches(
            d_model, patch_frames, patch_bands, dtype=policy, name="patches"
        )
        positions = SinusoidalPositionalEncoding(dtype=policy, name="positions")
        encoder = Encoder(num_layers, name="encoder", **options)
        decoder_depth = num_layers if num_decoder_layers is None else num_decoder_layers
        decoder = Decoder(decoder_depth, name="decoder", **options)
        embedding = TokenEmbedding(vocabulary_size, d_model, dtype=policy, name="embedding")
        dropout = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")

        features = keras.Input((None, num_bands), dtype="float32", name="features")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        vectors, mask = patches(features)
        # `encoder.call` makes each layer a node of the graph. Saved weights require these nodes.
        memory = encoder.call(dropout(vectors), padding_mask=mask)
        y = dropout(positions(embedding(target_ids)))
        states = decoder.call(y, memory, memory_padding_mask=mask)
        encoder.built = decoder.built = True  # or `train_on_batch` would try to build them again
        inputs = {"features": features, "target_ids": target_ids}
        super().__init__(inputs, embedding(states, reverse=True), **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.num_bands = num_bands
        self.patch_frames = patch_frames
        self.patch_bands = patch_bands
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.max_length = max_length
        self.pad_id = pad_id
        self.positions = positions
        self.embedding = embedding
        self.encoder = encoder
        self.decoder = decoder
        self.states = states
        self._encode = keras.Function(features, (memory, mask))

    def output_weights(self) -> tuple[Any, None]:
        """Returns the output matrix `(V, D)` and None, because there is no bias."""
        return self.embedding.embeddings, None

    def init_cache(self, features: Any, max_length: int | None, beam_size: Any = 1) -> Cache:
        """Encodes spectrograms, float `(B, T, F)`, and returns the cache (see `Searchable`).

        Raises:
            ValueError: If `max_length` exceeds that of the model.
        """
        self._check_length(max_length)
        memory, mask = self._encode(features)
        return self.decoder.init_cache(ops.shape(features)[0], beam_size, max_length, memory, mask)

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` positions.

        Raises:
            ValueError: If `max_length` exceeds that of the model.
        """
        self._check_length(max_length)
        return self.decoder.extend_cache(cache, max_length)

    def step(self, token_ids: Any, cache: Cache, position: Any) -> tuple[Any, Cache]:
        """Predicts the next token of every beam (see `Searchable.step`)."""
        x = self.embedding(ops.reshape(token_ids, (-1, 1)))
        x = ops.reshape(self.positions(x, offset=position), (-1, self.d_model))
        x, cache, _ = self.decoder.step(x, cache, position)
        logits = ops.cast(self.embedding(x, reverse=True), "float32")
        return ops.reshape(logits, (*ops.shape(token_ids), self.vocabulary_size)), cache

    def _check_length(self, max_length: int | None) -> None:
        if max_length is not None and max_length > self.max_length:
            raise ValueError(
                f"`max_length` of a search must be at most that of the model ({self.max_length}). "
                f"Received: max_length={max_length}"
            )
