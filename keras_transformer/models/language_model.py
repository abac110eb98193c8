"""The decoder-only language model (GPT) as a functional Keras model."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.types import Ids, LayerMaker, Size
from keras_transformer.architectures import register_architecture
from keras_transformer.errors import check_sizes
from keras_transformer.layers import Decoder, Dropout, TokenEmbedding, padding_mask
from keras_transformer.layers.attention.attention_patterns import new_attention_pattern
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.base import taken_arguments
from keras_transformer.layers.normalization import NORMALIZATIONS, takes_padding_mask
from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS, positions
from keras_transformer.layers.segments import same_segment, segment_offsets
from keras_transformer.models.base import check_pad_id
from keras_transformer.models.token_predictor import TokenPredictor


@register_architecture(
    "language_model",
    presets={
        # The sizes of nanoGPT (github.com/karpathy/nanoGPT) on a CPU, and those of GPT-2.
        "tiny": {
            **dict(num_layers=4, d_model=128, num_heads=4, d_ff=512, position_encoding="rotary"),
            **dict(dropout_rate=0.0, attention_dropout_rate=0.0),
        },
        "base": {
            **dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
            **dict(position_encoding="learned", dropout_rate=0.1, attention_dropout_rate=0.1),
        },
    },
)
@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(TokenPredictor):
    """A decoder without encoder that predicts the next token of a text, as in GPT-2.

    The defaults are those of GPT-2 with 124M parameters: pre-norm, GELU, learned positions, and one
    matrix for embedding and output projection. Weights are drawn from N(0, 0.02²). The weights of
    the projections that end in a residual connection are then divided by sqrt(2 num_layers), if the
    layers are not your own (`decoder_layer`).

    `Generator` continues texts by beam search or sampling. In `search`, `source_ids` are prompts:
    the model reads each prompt in one pass, and the hypotheses are continuations.

    Example:

    >>> model = LanguageModel(
    ...     vocabulary_size=65, num_layers=4, d_model=128, num_heads=4, d_ff=512, pad_id=-1
    ... )
    >>> logits = model(token_ids)                                               # (B, T, 65)

    Args:
        vocabulary_size: Number of tokens V.
        num_layers, d_model, num_heads, d_ff, dropout_rate, attention_dropout_rate: See
            `Transformer`. Default to 12, 768, 12, 3072, 0.1 and 0.1.
        position_encoding, activation, norm_first, norm_epsilon: See `Transformer`. Default to
            `"learned"`, `"gelu_approximate"`, True and 1e-5.
        max_length: Maximum length of prompt and continuation in tokens for `Generator`, and the
            number of learned positions. Defaults to 1024.
        pad_id: Id of padding, in the vocabulary or -1. With -1, every token of the vocabulary can
            occur in texts. Defaults to 0.
        attention_pattern: See `Transformer`. A list of patterns is repeated over the layers:
            `[None, "local"]` alternates, as in GPT-3. Defaults to None.
        attention_window, normalization, use_bias, tie_word_embeddings: See `Transformer`.
        num_kv_heads, qk_norm, attention_soft_cap, dtype: See `Transformer`.
        d_k, d_v: See `EncoderLayer`.
        max_wavelength: See `RotaryPositionalEncoding`. Defaults to 10,000.
        decoder_layer: See `layer` of `Decoder`. Defaults to None.
        logits_soft_cap: See `soft_cap` of `TokenEmbedding`. Defaults to None.

    Call arguments:
        inputs: int tensor `(B, T)` of token ids, padded with `pad_id` at the end. Or rows of
            several texts, `{"token_ids": ..., "token_segments": ...}` (see `pack_documents`).

    Returns:
        The logits, a float tensor `(B, T, V)` in the compute dtype. Row t predicts token t + 1.

    Attributes:
        states: The decoder's symbolic output `(B, T, D)`, before the projection to logits.

    Raises:
        ValueError: If `pad_id` is out of range, or as `Transformer`.

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, §2.3.
    """

    reads_prompt = True

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        d_model: int = 768,
        num_heads: int = 12,
        d_ff: int = 3072,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        position_encoding: str = "learned",
        activation: str = "gelu_approximate",
        norm_first: bool = True,
        norm_epsilon: float = 1e-5,
        max_length: int = 1024,
        pad_id: int = 0,
        attention_pattern: str | list[str | None] | None = None,
        attention_window: int | None = None,
        normalization: str = "layer",
        use_bias: bool = True,
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        attention_soft_cap: float | None = None,
        logits_soft_cap: float | None = None,
        tie_word_embeddings: bool = True,
        d_k: int | None = None,
        d_v: int | None = None,
        max_wavelength: float = 10_000.0,
        decoder_layer: LayerMaker = None,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        check_pad_id(pad_id, vocabulary_size, minimum=-1)
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        embedding = TokenEmbedding(
            vocabulary_size,
            d_model,
            use_scale=False,
            initializer=initializer,
            tie_weights=tie_word_embeddings,
            pad_id=None,
            soft_cap=logits_soft_cap,
            dtype=policy,
            name="embedding",
        )
        # `for_decoder`: T5's position bias then has no buckets for later tokens.
        encoding = POSITION_ENCODINGS.new(
            position_encoding,
            max_length=max_length,
            num_heads=num_heads,
            initializer=initializer,
            max_wavelength=max_wavelength,
            dtype=policy,
            name="positions",
        ).for_decoder()
        options = {
            **taken_arguments(Decoder, locals()),
            "kernel_initializer": initializer,
            "position_encoding": encoding.for_attention(),
            "attention_pattern": new_attention_pattern(attention_pattern, attention_window),
            "dtype": policy,
        }
        decoder = Decoder(use_memory=False, layer=decoder_layer, name="decoder", **options)
        dropout = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")
        is_masked = takes_padding_mask(NORMALIZATIONS[normalization][0])

        def hidden_states(token_ids: Ids, token_segments: Ids | None = None) -> Any:
            x = embedding(ops.maximum(token_ids, 0))  # The id of padding may be -1.
            x = dropout(encoding(x, offset=segment_offsets(token_segments)))
            mask = padding_mask(token_ids, pad_id) if is_masked else None
            same = same_segment(token_segments, token_segments)
            # `decoder.call` makes each layer a node of the graph, which saved weights require.
            return decoder.call(x, padding_mask=mask, attention_mask=same)

        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        states = hidden_states(token_ids)
        decoder.build((None, None, d_model))
        super().__init__(token_ids, embedding(states, reverse=True), **kwargs)
        for layer in () if decoder_layer else decoder.layers:
            for last in (layer.self_attention.output_projection, layer.feed_forward.outer):
                last.kernel.assign(last.kernel * (2 * num_layers) ** -0.5)

        self.dtype_policy = policy
        self.store_arguments(locals())
        self.positions = encoding
        # Prompts have the embedding of all tokens.
        self.embedding = self.source_embedding = self.target_embedding = embedding
        self.decoder = decoder
        self.states = states
        self.packed_states_of = hidden_states if decoder.takes_masks() else None

    def output_weights(self) -> tuple[Any, Any]:
        """Returns the output matrix `(V, D)` and None, because there is no bias."""
        if self.logits_soft_cap is not None:
            raise ValueError(
                "`SlicedLogitsTrainer` needs logits without a bound: train the model itself. "
                f"Received: logits_soft_cap={self.logits_soft_cap}"
            )
        return self.embedding.output_weights()

    def init_cache(self, source_ids: Ids, max_length: int | None, beam_size: Size = 1) -> Cache:
        """Reads prompts in one pass and returns the cache (see `Searchable.init_cache`).

        The prompts `source_ids` are padded at any place. The first step reads the last token of
        each prompt, and this method the others. Raises `ValueError` if S is 0, or if S - 1 +
        `max_length` exceeds the number of learned positions.
        """
        batch, width = ops.shape(source_ids)
        if isinstance(width, int):
            check_sizes(prompt_length=width)
        self.positions.check_length(width - 1 + (max_length or 1))
        mask = padding_mask(source_ids, self.pad_id)
        columns = positions(width)
        order = ops.argsort(ops.where(mask, width + columns, columns), axis=1)
        source_ids = ops.take_along_axis(source_ids, order, axis=1)  # padding at the beginning
        last_positions = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True) - 1
        # The prompts without their last tokens, with two positions more, because Keras warns of
        # attention to a single position.
        prompts = ops.pad(source_ids[:, :-1], ((0, 0), (2, 0)))
        offset = last_positions - (width + 1)
        x = self._embed(prompts, offset)
        cache = self.decoder.init_cache(batch, beam_size, max_length)
        cache = self.decoder.prefill(cache, x, positions(width + 1, offset) >= 0)
        last = {"last_tokens": source_ids[:, -1:], "last_positions": last_positions}
        return cache._replace(sentence={**cache.sentence, **last})

    def extend_cache(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache with the same contents, but with room for `max_length` tokens."""
        self.positions.check_length(cache.sentence["prompt_mask"].shape[1] - 2 + max_length)
        return self.decoder.extend_cache(cache, max_length)

    def step(self, token_ids: Ids, cache: Cache, position: Size) -> tuple[Any, Cache]:
        """Predicts the next token of every beam, at position 0 that after the prompts."""
        shape, last = ops.shape(token_ids), cache.sentence
        token_ids = ops.where(ops.equal(position, 0), last["last_tokens"], token_ids)
        offset = ops.broadcast_to(last["last_positions"] + position, shape)
        x = self._embed(ops.reshape(token_ids, (-1, 1)), ops.reshape(offset, (-1, 1)))
        x, cache, _ = self.decoder.step(ops.reshape(x, (-1, self.d_model)), cache, position)
        logits = ops.cast(self.embedding(x, reverse=True), "float32")
        return ops.reshape(logits, (*shape, self.vocabulary_size)), cache

    def _embed(self, token_ids: Ids, offset: Size) -> Any:
        return self.positions(self.embedding(ops.maximum(token_ids, 0)), offset=offset)
