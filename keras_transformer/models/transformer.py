"""The encoder-decoder Transformer as a functional Keras model."""

from typing import Any, Self

import keras
from keras import ops

from keras_transformer._backend.types import Ids, LayerMaker, Size
from keras_transformer.architectures import register_architecture
from keras_transformer.layers import Decoder, Dropout, Encoder, EncoderLayer, padding_mask
from keras_transformer.layers.attention.attention_patterns import new_attention_pattern
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.base import taken_arguments
from keras_transformer.layers.normalization import NORMALIZATIONS, takes_padding_mask
from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS
from keras_transformer.layers.segments import same_segment, segment_offsets
from keras_transformer.models.seq2seq import Seq2Seq, ids_inputs, token_embeddings


@register_architecture(
    "transformer",
    presets={
        # Wu et al. 2021: text-only Multi30k, 2.57M parameters with 9,728 joint tokens.
        "tiny": dict(num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout_rate=0.3),
        # Vaswani et al. 2017, Table 3.
        "base": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout_rate=0.1),
        "big": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096, dropout_rate=0.3),
    },
)
@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(Seq2Seq):
    """The encoder-decoder Transformer of Figure 1, with shared embeddings (§3).

    The model is a functional `keras.Model`, so `compile`, `fit`, `predict`, `save`, `export` and
    `summary` work as usual. `init_cache` and `step` decode one token at a time.

    Example:

    >>> model = Transformer.tiny(vocabulary_size=8000)
    >>> logits = model({"source_ids": source_ids, "target_ids": target_ids})     # (B, T, 8000)

    Args:
        vocabulary_size: Size V of the joint vocabulary, or of the source vocabulary if
            `target_vocabulary_size` is given.
        target_vocabulary_size: Size of the target vocabulary. The source embedding then has its own
            matrix. Defaults to None, which means a joint vocabulary: both embeddings and the output
            projection share one matrix (see `tie_word_embeddings`).
        num_layers: Number of encoder layers. Defaults to 6.
        num_decoder_layers: Number of decoder layers. Defaults to `num_layers`.
        d_model: Width D. Defaults to 512.
        dropout_rate: Dropout rate, in [0, 1), for sublayer outputs and for the sums of embeddings
            and position encodings (§5.4). Defaults to 0.1.
        num_heads, d_ff, d_k, attention_dropout_rate, use_scale, activation: See `EncoderLayer`.
        norm_first, norm_epsilon, normalization: See `ResidualConnection`. With `norm_first`, each
            stack ends with a norm.
        position_encoding: `"sinusoidal"`, `"sinusoidal_half_split"`, `"sinusoidal_marian"`,
            `"sinusoidal_opennmt"`, `"sinusoidal_fairseq"`, `"learned"`, `"rotary"`, `"alibi"`,
            `"t5"`, `"none"`, or a name registered by a program. Defaults to `"sinusoidal"`.
        max_length: Maximum sequence length in tokens, for search and for position encodings of
            limited length (learned). Defaults to 1024.
        pad_id: Id of padding. Defaults to 0.
        attention_pattern: Pattern of self-attention for long sequences (§4): `"full"`, `"local"`,
            or a name registered by a program. `"full"` gives the same results as no pattern, but
            does not store all attention scores. Cross-attention then uses `"full"`. Defaults to
            None, which computes all scores at once. This is fastest for short inputs.
        attention_window: Window of `"local"` in tokens, or the size that another pattern needs.
            Must be None for patterns without one. Defaults to None.
        tie_word_embeddings: Whether the output projection shares the matrix of the target
            embedding. Defaults to True, as in the paper.
        use_logits_bias: Whether a learned bias is added to the logits. Defaults to False.
        use_bias: See `EncoderLayer`.
        num_kv_heads, qk_norm, attention_soft_cap: See `MultiHeadAttention`.
        encoder_layer, decoder_layer: See `layer` of `Encoder` and `Decoder`. Default to None.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: `{"source_ids": int (B, S), "target_ids": int (B, T)}`, padded with `pad_id` at the
            end. `target_ids` start with the beginning-of-sentence id. If a row has several sentence
            pairs, also `source_segments` and `target_segments` (see `packed_states`).

    Returns:
        The logits, a float tensor `(B, T, V)` in the compute dtype. Row t predicts token t + 1.

    Raises:
        ValueError: If `position_encoding` or `attention_pattern` is unknown or the two are
            incompatible, if `attention_window` is missing or not allowed, or if `num_heads` does
            not divide `d_model`.

    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 6,
        num_decoder_layers: int | None = None,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        position_encoding: str = "sinusoidal",
        activation: str = "relu",
        norm_first: bool = False,
        norm_epsilon: float = 1e-6,
        max_length: int = 1024,
        pad_id: int = 0,
        attention_pattern: str | None = None,
        attention_window: int | None = None,
        d_k: int | None = None,
        use_scale: bool = True,
        normalization: str = "layer",
        tie_word_embeddings: bool = True,
        use_logits_bias: bool = False,
        use_bias: bool = True,
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        attention_soft_cap: float | None = None,
        encoder_layer: LayerMaker = None,
        decoder_layer: LayerMaker = None,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        position_options: dict[str, Any] = {"max_length": max_length, "num_heads": num_heads}
        position_options |= {"dtype": policy, "name": "positions"}
        source_positions = POSITION_ENCODINGS.new(position_encoding, **position_options)
        positions = source_positions.for_decoder()
        options = {
            **taken_arguments(EncoderLayer, locals()),
            "attention_pattern": new_attention_pattern(attention_pattern, attention_window),
            "position_encoding": source_positions.for_attention(),
            "dtype": policy,
        }
        encoder = Encoder(num_layers, layer=encoder_layer, name="encoder", **options)
        decoder_depth = num_layers if num_decoder_layers is None else num_decoder_layers
        options["position_encoding"] = positions.for_attention()
        decoder = Decoder(decoder_depth, layer=decoder_layer, name="decoder", **options)
        source_embedding, target_embedding = token_embeddings(
            vocabulary_size,
            target_vocabulary_size,
            pad_id,
            d_model,
            policy,
            tie_weights=tie_word_embeddings,
            use_bias=use_logits_bias,
        )
        dropout = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")

        # `encoder.call` makes each layer a node of the graph. Saved weights require these nodes.
        inputs = ids_inputs()
        is_masked = takes_padding_mask(NORMALIZATIONS[normalization][0])

        def hidden_states(source_ids: Ids, target_ids: Ids, **segments: Ids) -> tuple[Any, Any]:
            of_source, of_target = map(segments.get, ("source_segments", "target_segments"))
            source_mask = padding_mask(source_ids, pad_id)
            x = source_positions(source_embedding(source_ids), offset=segment_offsets(of_source))
            memory = encoder.call(dropout(x), source_mask, same_segment(of_source, of_source))
            y = positions(target_embedding(target_ids), offset=segment_offsets(of_target))
            # Padding at the end of the target needs a mask only for the statistics of some norms.
            target_mask = padding_mask(target_ids, pad_id) if is_masked else None
            same = same_segment(of_target, of_target), same_segment(of_target, of_source)
            return decoder.call(dropout(y), memory, target_mask, source_mask, *same), memory

        states, memory = hidden_states(**inputs)
        shape = (None, None, d_model)  # A file has the changes of a stack beside its shapes.
        encoder.build(shape)
        decoder.build(shape, shape)
        logits = target_embedding(states, reverse=True)
        super().__init__(inputs, logits, **kwargs)

        self.dtype_policy = policy
        self.store_arguments(locals())
        self.positions = positions
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.states = states
        if encoder.takes_masks() and decoder.takes_masks("memory_attention_mask"):
            self.packed_states_of = lambda **inputs: hidden_states(**inputs)[0]
        if not taken_arguments(decoder.layers[-1].call, {"return_attention_weights": True}):
            self.__dict__["source_attention"] = None  # as `Searchable` has it without attention
        self._encode = keras.Function(inputs["source_ids"], memory)

    @classmethod
    def big(cls, vocabulary_size: int, **changes: Any) -> Self:
        """Creates a model of the big size of the paper, with random weights (see `of_size`)."""
        return cls.of_size("big", vocabulary_size, **changes)

    def encode(self, source_ids: Ids) -> Any:
        """Returns the encoder's output, float `(B, S, D)`, for `source_ids`, int `(B, S)`."""
        return self._encode(source_ids)

    def init_cache(self, source_ids: Ids, max_length: int | None, beam_size: Size = 1) -> Cache:
        """Encodes the sources and returns the cache (see `Searchable.init_cache`).

        Raises `ValueError` if `max_length` exceeds the number of learned positions.
        """
        self.positions.check_length(max_length or 0)
        mask = padding_mask(source_ids, self.pad_id)
        batch, memory = ops.shape(source_ids)[0], self.encode(source_ids)
        return self.decoder.init_cache(batch, beam_size, max_length, memory, mask)

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` positions."""
        self.positions.check_length(max_length)
        return self.decoder.extend_cache(cache, max_length)

    def step(
        self, token_ids: Ids, cache: Cache, position: Size, return_attention_weights: bool = False
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam (see `Searchable.step` and `source_attention`)."""
        x = self.positions(self.embed_step(token_ids, cache), offset=position)
        x, cache, weights = self.decoder.step(ops.reshape(x, (-1, self.d_model)), cache, position)
        logits = self.step_logits(x, token_ids, cache)
        if return_attention_weights:
            return logits, cache, ops.mean(ops.cast(weights, "float32"), axis=1)
        return logits, cache

    def source_attention(self, source_ids: Ids, target_ids: Ids) -> Any:
        """Returns the attention weights from target to source tokens (see `Searchable`).

        They are from the last layer's cross-attention, averaged over heads. For each real target
        token, the weights over the source tokens (eos included) sum to 1. Padding has weights of 0.
        """
        _, beams, length = ops.shape(target_ids)
        of_sources = self.encode(source_ids), padding_mask(source_ids, self.pad_id)
        memory, mask = (ops.repeat(x, beams, axis=0) for x in of_sources)
        x = self.positions(self.target_embedding(ops.reshape(target_ids, (-1, length))))
        options = {"memory_padding_mask": mask, "return_attention_weights": True}
        _, weights = self.decoder(x, memory, **options)
        weights = ops.mean(ops.cast(weights, "float32"), axis=1)
        return self.without_padding(weights, source_ids, target_ids)
