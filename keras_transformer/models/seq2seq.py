"""The base class of the sequence-to-sequence models."""

from typing import Any, Self

import keras
from keras import ops

from keras_transformer._backend.types import Ids, Tensor
from keras_transformer.layers import TokenEmbedding, padding_mask
from keras_transformer.layers.attention.cache import Cache, LimitedVocabulary, take_columns
from keras_transformer.models.base import check_pad_id
from keras_transformer.models.token_predictor import TokenPredictor


class Seq2Seq(TokenPredictor):
    """Base class of the functional models with an encoder, a decoder and tied embeddings.

    The class has published sizes, the output projection and a limited vocabulary. A subclass
    creates its layers, calls `super().__init__(inputs, logits)`, stores each constructor argument
    in an attribute of equal name, and defines `init_cache` and `step` (see `Searchable` in
    `models/protocol.py`), which call `embed_step` and `step_logits`. It also sets `states`, the
    symbolic output of the decoder before the projection to logits, and the `TokenEmbedding` layers
    `source_embedding` and `target_embedding`, of which the last computes the logits.
    """

    @property
    def accepts_any_shape(self) -> bool:
        """Whether `Translator` may search without XLA as well as with XLA (see `Searchable`)."""
        # In half precision, XLA rounds differently: a translation would depend on those before it.
        return bool(self.compute_dtype == "float32")

    @classmethod
    def tiny(cls, vocabulary_size: int, **changes: Any) -> Self:
        """Creates a model for small corpora, with random weights (see `of_size`)."""
        return cls.of_size("tiny", vocabulary_size, **changes)

    @classmethod
    def base(cls, vocabulary_size: int, **changes: Any) -> Self:
        """Creates a model of the base size of the paper, with random weights (see `of_size`)."""
        return cls.of_size("base", vocabulary_size, **changes)

    def limit_vocabulary(self, cache: Cache, token_ids: Ids) -> Cache:
        """Limits `step` to some tokens (see `Searchable`)."""
        if self.target_embedding.scale is not None:
            raise ValueError(
                "A shortlist needs a token embedding that is not quantized. Received: a model "
                "whose token embedding is int8"
            )
        vocabulary = LimitedVocabulary.of(
            token_ids, *self.output_weights(), self.pad_id, self.compute_dtype
        )
        return cache._replace(sentence={**cache.sentence, "vocabulary": vocabulary})

    def embed_step(self, token_ids: Ids, cache: Cache) -> Any:
        """Returns the embeddings `(B * N, 1, E)` of the `token_ids` `(B, N)` of a step."""
        vocabulary = cache.sentence.get("vocabulary")
        if vocabulary is not None:
            token_ids = take_columns(vocabulary.token_ids, token_ids)
        return self.target_embedding(ops.reshape(token_ids, (-1, 1)))

    def step_logits(self, states: Tensor, token_ids: Ids, cache: Cache) -> Any:
        """Returns the logits of a step, float32 `(B, N, V)`, of the hidden states `(B * N, E)`."""
        vocabulary, beams = cache.sentence.get("vocabulary"), ops.shape(token_ids)[1]
        if vocabulary is not None:
            return vocabulary.logits(states, beams)
        logits = self.target_embedding(states, reverse=True)
        return ops.reshape(ops.cast(logits, "float32"), (-1, beams, logits.shape[-1]))

    def without_padding(self, weights: Tensor, source_ids: Ids, target_ids: Ids) -> Any:
        """Returns attention weights `(B * N, T, S)` as float32 `(B, N, T, S)`, 0 for padding."""
        _, beams, length = ops.shape(target_ids)
        weights = ops.cast(weights, "float32")
        weights = ops.reshape(weights, (-1, beams, length, ops.shape(source_ids)[1]))
        is_source = padding_mask(source_ids, self.pad_id)
        is_target = padding_mask(target_ids, self.pad_id)
        is_pair = ops.logical_and(is_target[..., None], is_source[:, None, None])
        return ops.where(is_pair, weights, 0.0)

    def output_weights(self) -> tuple[Any, Any]:
        """Returns the output matrix `(V, E)`, and the bias `(V,)` of the logits or None."""
        return self.target_embedding.output_weights()


def ids_inputs() -> dict[str, Any]:
    """Returns the symbolic inputs of a model: `source_ids` `(B, S)`, `target_ids` `(B, T)`."""
    names = ("source_ids", "target_ids")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def token_embeddings(
    vocabulary_size: int,
    target_vocabulary_size: int | None,
    pad_id: int,
    width: int,
    dtype: Any,
    **for_logits: Any,
) -> tuple[TokenEmbedding, TokenEmbedding]:
    """Returns the source and target embeddings. For a joint vocabulary, both are the same layer.

    `**for_logits` are `tie_weights` and `use_bias` of the target embedding. Raises `ValueError` if
    `pad_id` is not in a vocabulary.
    """
    check_pad_id(pad_id, min(vocabulary_size, target_vocabulary_size or vocabulary_size))
    # The models pass their masks by name, and the decoder needs none for its own padding.
    options: dict[str, Any] = {"d_model": width, "dtype": dtype, "pad_id": None}
    if target_vocabulary_size is None:
        joint = TokenEmbedding(vocabulary_size, name="embedding", **options, **for_logits)
        return joint, joint
    source = TokenEmbedding(vocabulary_size, name="source_embedding", **options)
    options |= {"name": "target_embedding", **for_logits}
    return source, TokenEmbedding(target_vocabulary_size, **options)
