"""BERT's encoder and the masked language model, as functional Keras models."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.operations import nan_outside
from keras_transformer._backend.types import Ids, Shape, Tensor
from keras_transformer.layers import (
    Dropout,
    Encoder,
    LearnedPositionalEncoding,
    TokenEmbedding,
    padding_mask,
)
from keras_transformer.layers.base import ConfiguredLayer, Dense, taken_arguments
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.models.base import ConfiguredModel, check_pad_id
from keras_transformer.models.token_predictor import TokenPredictor


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertEncoder(ConfiguredModel):
    """The encoder of BERT: a vector for each token, from the tokens on both sides of it (§3).

    Layer normalization and dropout follow the sum of token, position and, optionally, segment
    embeddings. The sizes default to those of BERT base, and initial matrices are drawn from a
    truncated normal distribution with standard deviation 0.02.

    Call it in a functional model of your own, and add layers for your task. `MaskedLanguageModel`
    pretrains it.

    Example:

    >>> encoder = BertEncoder(8000, num_layers=4, d_model=128, num_heads=4, d_ff=512)
    >>> token_ids = keras.Input((None,), dtype="int32")
    >>> x = encoder(token_ids)                                                      # (B, S, 128)
    >>> classifier = keras.Model(token_ids, keras.layers.Dense(2)(x[:, 0]))
    >>> tagger = keras.Model(token_ids, keras.layers.Dense(9)(x))

    Args:
        vocabulary_size: As for `LanguageModel`, as are `num_layers`, `d_model`, `num_heads`,
            `d_ff`, `dropout_rate`, `attention_dropout_rate`, `activation` and `dtype`, with the
            same defaults.
        norm_epsilon: See `ResidualConnection`. Defaults to 1e-12.
        max_length: Number of position embeddings, the maximum length in tokens. Defaults to 512.
        num_segments: Number of segments. BERT has two, for pairs of texts. Defaults to 0, which
            means no segment embeddings.
        pad_id: Id of padding. Defaults to 0.

    Call arguments:
        inputs: `token_ids`, int `(B, S)`, padded with `pad_id`. With segments, a dictionary
            `{"token_ids": int (B, S), "segment_ids": int (B, S)}`. Segments are counted from 0.

    Returns:
        A float tensor `(B, S, D)` in the compute dtype, with a Keras mask that is False for
        padding.

    Source: Devlin et al. 2019, BERT.
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        d_model: int = 768,
        num_heads: int = 12,
        d_ff: int = 3072,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        activation: str = "gelu_approximate",
        norm_epsilon: float = 1e-12,
        max_length: int = 512,
        num_segments: int = 0,
        pad_id: int = 0,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        check_pad_id(pad_id, vocabulary_size)
        unscaled: dict[str, Any] = {"use_scale": False, "initializer": _initializer()}
        unscaled |= {"pad_id": None, "dtype": policy}  # The encoder gets its mask by name.
        embedding = TokenEmbedding(vocabulary_size, d_model, name="embedding", **unscaled)
        positions = LearnedPositionalEncoding(
            max_length, initializer=_initializer(), dtype=policy, name="positions"
        )
        norm = LayerNormalization(norm_epsilon, dtype=policy, name="embedding_norm")
        options = {**taken_arguments(Encoder, locals()), "dtype": policy, "name": "encoder"}
        encoder = Encoder(kernel_initializer=_initializer(), **options)
        token_ids = inputs = keras.Input((None,), dtype="int32", name="token_ids")
        x = positions(embedding(token_ids))
        segment_embedding = None
        if num_segments:
            segment_embedding = TokenEmbedding(
                num_segments, d_model, name="segment_embedding", **unscaled
            )
            segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
            inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
            x = x + segment_embedding(segment_ids)
        x = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")(norm(x))
        super().__init__(inputs, encoder(x, padding_mask=padding_mask(token_ids, pad_id)), **kwargs)

        self.dtype_policy = policy
        self.store_arguments(locals())
        self.embedding = embedding
        self.positions = positions
        self.segment_embedding = segment_embedding
        self.embedding_norm = norm
        self.encoder = encoder

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns the Keras mask of the result, False for padding."""
        return padding_mask(inputs["token_ids"] if self.num_segments else inputs, self.pad_id)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLanguageModel(TokenPredictor):
    """Predicts masked tokens from the tokens around them (§3.1, task 1; appendix C.2).

    The encoder's vectors at the masked positions pass through a dense layer, the encoder's
    activation and layer normalization. The encoder's embedding matrix maps the result to logits, to
    which a bias is added. `mask_tokens` makes inputs and labels for the loss `MaskedCrossentropy`.

    Example:

    >>> model = MaskedLanguageModel(encoder)
    >>> inputs, labels = mask_tokens(token_ids, np.random.default_rng(0), 8000, mask_id=7999)
    >>> logits = model(inputs)                                                     # (B, M, 8000)
    >>> model.encoder.save("encoder.keras")                      # to fine-tune after the training

    Args:
        encoder: A `BertEncoder`, which the model shares and trains.

    Call arguments:
        inputs: The encoder's inputs and `masked_positions`, counted from 0, in one dictionary:
            `{"token_ids": int (B, S), "masked_positions": int (B, M)}`. A row with fewer than M
            masked tokens has any position in the rest. A position outside of the row gives NaN.

    Returns:
        The logits, a float tensor `(B, M, V)` in the compute dtype.

    Source: Devlin et al. 2019.
    """

    def __init__(self, encoder: BertEncoder, **kwargs: Any) -> None:
        policy = encoder.dtype_policy
        dense = Dense(
            encoder.d_model,
            activation=encoder.encoder.layers[0].feed_forward.inner.activation,
            kernel_initializer=_initializer(),
            dtype=policy,
            name="prediction",
        )
        norm = LayerNormalization(encoder.norm_epsilon, dtype=policy, name="prediction_norm")
        inputs = {x.name: keras.Input((None,), dtype="int32", name=x.name) for x in encoder.inputs}
        positions = keras.Input((None,), dtype="int32", name="masked_positions")
        states = encoder(inputs if encoder.num_segments else inputs["token_ids"])
        masked = _TakePositions(dtype=policy, name="masked_states")(states, positions)
        logits = encoder.embedding(norm(dense(masked)), reverse=True)
        logits = _Bias(dtype=policy, name="prediction_bias")(logits)
        super().__init__({**inputs, "masked_positions": positions}, logits, **kwargs)
        self.dtype_policy = policy
        self.encoder = encoder
        self.pad_id = encoder.pad_id  # also of labels, where it counts in no loss

    def labels(self, inputs: Any, given: Any = None) -> Any:
        """Returns the `given` labels. Raises `ValueError` if they are None."""
        if given is None:
            raise ValueError(
                "A `MaskedLanguageModel` needs labels (B, M), the tokens that were masked: "
                "`fit(*mask_tokens(...))`. Received: y=None"
            )
        return given


def _initializer() -> Any:
    return keras.initializers.TruncatedNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="keras_transformer")
class _TakePositions(ConfiguredLayer):
    """Takes from `(B, S, D)` the vectors at positions `(B, M)`: `(B, M, D)`, NaN outside of S."""

    def call(self, vectors: Tensor, positions: Ids) -> Any:
        exists = ops.logical_and(positions >= 0, positions < ops.shape(vectors)[1])[..., None]
        indices = ops.where(exists, positions[..., None], 0)
        return nan_outside(exists, ops.take_along_axis(vectors, indices, axis=1))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """The mask of the vectors is not one of the positions."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class _Bias(ConfiguredLayer):
    """Adds a bias to the last axis."""

    def build(self, input_shape: Shape) -> None:
        self.bias = self.add_weight(name="bias", shape=(input_shape[-1],), initializer="zeros")

    def call(self, inputs: Tensor) -> Any:
        return ops.add(inputs, self.bias)
