"""The encoder-decoder Transformer as a functional Keras model."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.full_attention import FullAttention
from keras_transformer.layers.attention.local_attention import LocalAttention
from keras_transformer.layers.attention.masks import padding_mask
from keras_transformer.layers.attention.strided_attention import StridedAttention
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.positions.binary_positional_encoding import BinaryPositionalEncoding
from keras_transformer.layers.positions.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.positions.learned_positional_encoding import LearnedPositionalEncoding
from keras_transformer.layers.positions.normalized_index_positional_encoding import (
    NormalizedIndexPositionalEncoding,
)
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.positions.rotary_positional_encoding import RotaryPositionalEncoding
from keras_transformer.layers.positions.sinusoidal_positional_encoding import (
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.token_embedding import TokenEmbedding
from keras_transformer.models.presets import PRESETS

# Name to (constructor, keyword arguments, whether it takes `max_length`).
POSITION_ENCODINGS: dict[str, tuple[Callable[..., PositionalEncoding], dict[str, Any], bool]] = {
    "sinusoidal": (SinusoidalPositionalEncoding, {}, False),
    "sinusoidal_half_split": (SinusoidalPositionalEncoding, {"layout": "half_split"}, False),
    "learned": (LearnedPositionalEncoding, {}, True),
    "rotary": (RotaryPositionalEncoding, {}, False),
    "none": (PositionalEncoding, {}, False),
    "index": (IndexPositionalEncoding, {}, False),
    "index_concatenated": (IndexPositionalEncoding, {"concatenate": True}, False),
    "normalized_index": (NormalizedIndexPositionalEncoding, {}, True),
    "normalized_index_concatenated": (
        NormalizedIndexPositionalEncoding,
        {"concatenate": True},
        True,
    ),
    "binary": (BinaryPositionalEncoding, {}, True),
    "binary_concatenated": (BinaryPositionalEncoding, {"concatenate": True}, True),
}

# Name to (constructor, whether it takes a window).
ATTENTION_PATTERNS: dict[str, tuple[Callable[..., AttentionPattern], bool]] = {
    "full": (FullAttention, False),
    "local": (LocalAttention, True),
    "strided": (StridedAttention, True),
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(keras.Model):
    """Figure 1: an encoder, a decoder, and one matrix for all embeddings (§3).

    A functional `keras.Model`: `compile`, `fit`, `predict`, `save`, `export` and `summary` work as
    in every other. For search it also speaks the protocol `init_cache` / `step`, which decodes one
    token at a time from cached keys and values.

    Example:

    >>> model = Transformer.from_preset("tiny", vocabulary_size=8000)
    >>> logits = model({"source_ids": source_ids, "target_ids": target_ids})     # (B, T, 8000)

    Args:
        vocabulary_size: Size V of the joint vocabulary, or of the source's where
            `target_vocabulary_size` is given.
        target_vocabulary_size: Size of the target vocabulary. Defaults to None: one joint
            vocabulary, and one matrix for source embedding, target embedding and output projection.
            If given, target embedding and output projection share one matrix, the source has its
            own.
        num_layers: Encoder layers, and decoder layers. Defaults to 6.
        d_model: Width D. Defaults to 512.
        num_heads: Attention heads H. Defaults to 8.
        d_ff: Width F of the feed-forward networks. Defaults to 2048.
        dropout_rate: Dropout on sublayer outputs and on the sums of embeddings and positions
            (§5.4), in [0, 1). Defaults to 0.1.
        position_encoding: A key of `POSITION_ENCODINGS`. Defaults to `"sinusoidal"`.
        activation: Activation of the feed-forward networks. Defaults to `"relu"`.
        norm_first: Pre-norm (with a final norm after each stack) instead of the paper's post-norm.
            Defaults to False.
        max_length: Longest sequence in tokens, for those position encodings that need one
            (learned, normalized index, binary). Defaults to 1024.
        pad_id: Id of padding. Defaults to 0.
        attention_pattern: How self-attention goes over long sequences (§4), in encoder and decoder:
            `"full"`, `"local"` or `"strided"`. Attention to the source is all to all with each of
            them, in memory linear in the length. Defaults to None: all to all by equation 1 as it
            stands, which is fastest for sentences; `"full"` computes the same.
        attention_window: Window of `"local"` and stride of `"strided"` in tokens, which need one.
            Defaults to None.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: `{"source_ids": int (B, S), "target_ids": int (B, T)}`, padded with `pad_id` at the
            end; `target_ids` start with the beginning-of-sentence id.

    Returns:
        Logits, a float tensor `(B, T, V)` in the compute dtype; row t predicts token t + 1.

    Attributes:
        states: The decoder's output `(B, T, D)`, symbolic, of which the logits are a projection.

    Raises:
        ValueError: If `position_encoding` or `attention_pattern` is unknown, the latter lacks its
            `attention_window` or takes none, or `num_heads` does not divide `d_model`.

    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 6,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        dropout_rate: float = 0.1,
        position_encoding: str = "sinusoidal",
        activation: str = "relu",
        norm_first: bool = False,
        max_length: int = 1024,
        pad_id: int = 0,
        attention_pattern: str | None = None,
        attention_window: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        positions = _position_encoding(position_encoding, max_length, policy)
        rotary = positions if isinstance(positions, RotaryPositionalEncoding) else None
        pattern = _attention_pattern(attention_pattern, attention_window)
        sizes = (d_model, num_heads, d_ff, dropout_rate, activation, norm_first, rotary, pattern)
        encoder_layers = _stack(EncoderLayer, "encoder_layer", num_layers, sizes, policy)
        decoder_layers = _stack(DecoderLayer, "decoder_layer", num_layers, sizes, policy)
        decoder_norm = _final_norm(norm_first, policy, "decoder_norm")
        source_embedding, target_embedding = _token_embeddings(
            vocabulary_size, target_vocabulary_size, d_model, policy
        )
        dropout = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")

        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        source_mask = padding_mask(source_ids, pad_id)
        x = dropout(positions(source_embedding(source_ids)))
        for layer in encoder_layers:
            x = layer(x, padding_mask=source_mask)
        memory = _final_norm(norm_first, policy, "encoder_norm")(x)
        y = dropout(positions(target_embedding(target_ids)))
        for layer in decoder_layers:
            y = layer(y, memory=memory, memory_padding_mask=source_mask)
        states = decoder_norm(y)
        logits = target_embedding(states, reverse=True)
        super().__init__({"source_ids": source_ids, "target_ids": target_ids}, logits, **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.num_layers = num_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.position_encoding = position_encoding
        self.activation = activation
        self.norm_first = norm_first
        self.max_length = max_length
        self.pad_id = pad_id
        self.attention_pattern = attention_pattern
        self.attention_window = attention_window
        self.positions = positions
        self.target_embedding = target_embedding
        self.decoder_layers = decoder_layers
        self.decoder_norm = decoder_norm
        self.states = states
        self._encoder = keras.Function(source_ids, memory)

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **overrides: Any) -> "Transformer":
        """Makes a model of a known size.

        Args:
            preset: `"tiny"`, `"base"` or `"big"`.
            vocabulary_size: As in the constructor.
            **overrides: Any argument of the constructor.

        Raises:
            ValueError: If there is no such preset.
        """
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {list(PRESETS)}. Received: preset={preset!r}"
            )
        return cls(vocabulary_size, **{**PRESETS[preset], **overrides})

    def output_weights(self) -> tuple[Any, Any]:
        return self.target_embedding.embeddings, None

    def encode(self, source_ids: Any) -> Any:
        """Runs the encoder.

        Args:
            source_ids: int tensor `(B, S)`.

        Returns:
            The memory, a float tensor `(B, S, D)`.
        """
        return self._encoder(source_ids)

    def init_cache(
        self, source_ids: Any, max_length: int | None, beam_size: int = 1
    ) -> dict[str, Any]:
        """Encodes the sources and lays out the decoding cache.

        Args:
            source_ids: int tensor `(B, S)`.
            max_length: Positions L that will be decoded at most, in tokens. None: the cache begins
                without any and grows by one in each step, for loops in which shapes may change.
            beam_size: Beams N per sentence. Defaults to 1.

        Returns:
            The cache, of which search reorders the leaves under `"beam"` along axis 1:

            - `"beam"`: `"slots"`, int32 `(B, N, L)`: at which slot of each position the keys and
              values of a hypothesis's token lie; -1 where none is written yet.
            - `"sentence"`: each layer's self-attention keys `(B * H, K, L * N)` and values
              `(B * H, L * N, K)`, which stay where they are when hypotheses change places; each
              layer's projected memory; and the padding mask `(B, S)`.
            - `"model"`: each layer's fused projections.

        Raises:
            ValueError: If `max_length` exceeds the positions that the model has learned.
        """
        self._check_length(max_length or 0)
        memory = self.encode(source_ids)
        batch = ops.shape(source_ids)[0]
        layers = self.decoder_layers
        return {
            "beam": {"slots": ops.full((batch, beam_size, max_length or 0), -1, dtype="int32")},
            "sentence": {
                "decoded": [
                    layer.self_attention.init_cache(batch, beam_size, max_length)
                    for layer in layers
                ],
                "memory": [
                    layer.cross_attention.project_memory(memory, memory) for layer in layers
                ],
                "padding_mask": padding_mask(source_ids, self.pad_id),
            },
            "model": [layer.self_attention.fuse_projections() for layer in layers],
        }

    def extend_cache(self, cache: dict[str, Any], max_length: int) -> dict[str, Any]:
        """Makes room for more positions.

        Search begins with a short cache and extends it as hypotheses grow, so that attention never
        looks at many positions that are still empty.

        Args:
            cache: What `init_cache` or `step` returned, of L positions.
            max_length: New number of positions, at least L.

        Returns:
            The cache with the same contents and `max_length` positions.

        Raises:
            ValueError: If `max_length` exceeds the positions that the model has learned.
        """
        self._check_length(max_length)
        slots = cache["beam"]["slots"]
        added = max_length - slots.shape[2]
        added_slots = added * slots.shape[1]
        decoded = [
            {"key": _pad(own["key"], 2, added_slots), "value": _pad(own["value"], 1, added_slots)}
            for own in cache["sentence"]["decoded"]
        ]
        return {
            "beam": {"slots": _pad(slots, 2, added, -1)},
            "sentence": {**cache["sentence"], "decoded": decoded},
            "model": cache["model"],
        }

    def take_sentences(self, cache: dict[str, Any], rows: Any) -> dict[str, Any]:
        """Keeps some sentences, so that search decodes no longer those that have ended.

        Args:
            cache: What `init_cache`, `extend_cache` or `step` returned, of B sentences.
            rows: int tensor `(M,)`, which sentences.

        Returns:
            The cache of M sentences.
        """

        def take(x: Any) -> Any:
            return ops.take(x, rows, axis=0)

        def take_heads(x: Any) -> Any:
            heads = ops.reshape(x, (-1, self.num_heads, *x.shape[1:]))
            return ops.reshape(take(heads), (-1, *x.shape[1:]))

        map_structure, sentence = keras.tree.map_structure, cache["sentence"]
        return {
            "beam": map_structure(take, cache["beam"]),
            "sentence": {
                "decoded": map_structure(take_heads, sentence["decoded"]),
                "memory": map_structure(take, sentence["memory"]),
                "padding_mask": take(sentence["padding_mask"]),
            },
            "model": cache["model"],
        }

    def _check_length(self, max_length: int) -> None:
        if self.position_encoding == "learned" and max_length > self.max_length:
            raise ValueError(
                "`max_length` must not exceed the model's learned positions. "
                f"Received: max_length={max_length}, model.max_length={self.max_length}"
            )

    def step(
        self,
        token_ids: Any,
        cache: dict[str, Any],
        position: Any,
        return_attention_weights: bool = False,
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam.

        Args:
            token_ids: int tensor `(B, N)`, the tokens at `position`.
            cache: What `init_cache` or the last `step` returned.
            position: Position of the tokens, an int or a 0-d int tensor; the first is 0.
            return_attention_weights: Whether to return the attention to the source too.

        Returns:
            A tuple of the logits, float32 `(B, N, V)`, for position + 1, and the updated cache;
            with `return_attention_weights` also the last layer's weights of the attention to the
            source, the mean over its heads, float32 `(B, N, S)`.
        """
        sentence = cache["sentence"]
        slots = cache["beam"]["slots"]
        if "grows" in sentence["decoded"][0]:
            slots = _pad(slots, 2, 1, -1)
        slots, attention_mask = _take_slots(slots, position, self.num_heads)
        x = self._embed_at(token_ids, position)
        decoded = []
        for layer, own, memory, projections in zip(
            self.decoder_layers,
            sentence["decoded"],
            sentence["memory"],
            cache["model"],
            strict=True,
        ):
            x, own, weights = layer.step(
                x, own, projections, attention_mask, memory, sentence["padding_mask"], position
            )
            decoded.append(own)
        logits = self.target_embedding(self.decoder_norm(x), reverse=True)
        shape = (-1, ops.shape(slots)[1], logits.shape[-1])
        logits = ops.reshape(ops.cast(logits, "float32"), shape)
        sentence = {**sentence, "decoded": decoded}
        cache = {"beam": {"slots": slots}, "sentence": sentence, "model": cache["model"]}
        if return_attention_weights:
            return logits, cache, ops.mean(ops.cast(weights, "float32"), axis=1)
        return logits, cache

    def _embed_at(self, token_ids: Any, position: Any) -> Any:
        """Embeds ids `(B, N)` that all stand at one position, to give `(B * N, D)`."""
        x = self.target_embedding(ops.reshape(token_ids, (-1, 1)))
        return ops.reshape(self.positions(x, offset=position), (-1, self.d_model))

    def get_config(self) -> dict[str, Any]:
        return {
            "vocabulary_size": self.vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
            "num_layers": self.num_layers,
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "position_encoding": self.position_encoding,
            "activation": self.activation,
            "norm_first": self.norm_first,
            "max_length": self.max_length,
            "pad_id": self.pad_id,
            "attention_pattern": self.attention_pattern,
            "attention_window": self.attention_window,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Transformer":
        return cls(**config)


def _position_encoding(name: str, max_length: int, dtype: Any) -> PositionalEncoding:
    if name not in POSITION_ENCODINGS:
        raise ValueError(
            f"`position_encoding` must be one of {list(POSITION_ENCODINGS)}. "
            f"Received: position_encoding={name!r}"
        )
    constructor, arguments, takes_max_length = POSITION_ENCODINGS[name]
    if takes_max_length:
        arguments = {**arguments, "max_length": max_length}
    return constructor(**arguments, dtype=dtype, name="positions")


def _attention_pattern(name: str | None, window: int | None) -> AttentionPattern | None:
    if name not in (None, *ATTENTION_PATTERNS):
        raise ValueError(
            f"`attention_pattern` must be None or one of {list(ATTENTION_PATTERNS)}. "
            f"Received: attention_pattern={name!r}"
        )
    takes_window = name is not None and ATTENTION_PATTERNS[name][1]
    if takes_window != (window is not None):
        raise ValueError(
            "`attention_window` must be given with the patterns that have a window or a stride, "
            f"and with no other. Received: attention_pattern={name!r}, attention_window={window}"
        )
    if name is None:
        return None
    constructor = ATTENTION_PATTERNS[name][0]
    return constructor(window) if takes_window else constructor()


def _token_embeddings(
    vocabulary_size: int, target_vocabulary_size: int | None, d_model: int, dtype: Any
) -> tuple[TokenEmbedding, TokenEmbedding]:
    """The embeddings of source and target: one and the same for a joint vocabulary."""
    if target_vocabulary_size is None:
        joint = TokenEmbedding(vocabulary_size, d_model, dtype=dtype, name="embedding")
        return joint, joint
    return (
        TokenEmbedding(vocabulary_size, d_model, dtype=dtype, name="source_embedding"),
        TokenEmbedding(target_vocabulary_size, d_model, dtype=dtype, name="target_embedding"),
    )


def _stack(
    layer: type[EncoderLayer], name: str, num_layers: int, sizes: tuple[Any, ...], dtype: Any
) -> list[Any]:
    return [layer(*sizes, dtype=dtype, name=f"{name}_{i + 1}") for i in range(num_layers)]


def _final_norm(norm_first: bool, dtype: Any, name: str) -> keras.layers.Layer:
    """Pre-norm leaves the last residual sum unnormalized; post-norm needs nothing more."""
    if norm_first:
        return LayerNormalization(dtype=dtype, name=name)
    return keras.layers.Identity(dtype=dtype, name=name)


def _pad(x: Any, axis: int, count: int, value: int = 0) -> Any:
    """Appends `count` entries of `value` along an axis."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, count)
    return ops.pad(x, widths, constant_values=value)


def _take_slots(slots: Any, position: Any, num_heads: int) -> tuple[Any, Any]:
    """Gives the n-th hypothesis slot n at `position`.

    Returns:
        A tuple of the slots `(B, N, L)` and the mask `(B * H, N, L * N)` of those that each
        hypothesis is made of.
    """
    beams, length = ops.shape(slots)[1:]
    numbers = ops.arange(beams, dtype="int32")
    here = ops.arange(length, dtype="int32") == position
    slots = ops.where(here, numbers[:, None], slots)
    mask = ops.reshape(slots[..., None] == numbers, (-1, 1, beams, length * beams))
    mask = ops.tile(mask, (1, num_heads, 1, 1))
    return slots, ops.reshape(mask, (-1, beams, length * beams))
