"""Encodes positions as indices: raw, scaled to fractions, or as binary digits."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import Dense
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
    positions,
)


@position_encoding("index")
@position_encoding("index_concatenated", concatenate=True)
@keras.saving.register_keras_serializable(package="keras_transformer")
class IndexPositionalEncoding(PositionalEncoding):
    """Encodes positions as the numbers 0, 1, 2, and so on.

    Position numbers can be much larger than the values of the embeddings.

    Example:

    >>> IndexPositionalEncoding(concatenate=True)(np.zeros((1, 50, 64), "float32"))

    Args:
        concatenate: If False, the index is added to every feature of the embedding. If True, the
            index is appended to the embedding as another feature, and a learned matrix projects
            the result back to width D. Defaults to False.

    For the call arguments and the result, see `PositionalEncoding`.
    """

    def __init__(self, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.concatenate = concatenate

    def build(self, input_shape: Any) -> None:
        if self.concatenate:
            width, options = input_shape[-1], {"dtype": self.dtype_policy, "name": "projection"}
            self.projection = Dense(width, use_bias=False, **options)
            self.projection.build((None, None, width + self.num_features))
        self.built = True

    @property
    def num_features(self) -> int:
        """Number of features that encode a position."""
        return 1

    def features(self, indices: Any) -> Any:
        """Returns float32 features `(..., T, num_features)` of int32 positions `(..., T)`."""
        return ops.cast(indices, "float32")[..., None]

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
        batch, length, d_model = ops.shape(embeddings)
        features = self.features(positions(length, offset))
        if not self.concatenate:
            return self.add_to(embeddings, self._over_features(features, d_model))
        features = ops.cast(features, self.compute_dtype)
        features = ops.broadcast_to(features, (batch, length, self.num_features))
        return self.projection(ops.concatenate([embeddings, features], axis=-1))

    def _over_features(self, features: Any, d_model: int) -> Any:
        """Pads the features with zeros to width D, or truncates them to width D.

        A single feature is not padded, because it is added to every feature of the embedding.
        """
        if self.num_features == 1:
            return features
        padding = max(d_model - self.num_features, 0)
        widths = [(0, 0)] * (len(features.shape) - 1) + [(0, padding)]
        return ops.pad(features, widths)[..., :d_model]


@position_encoding("normalized_index")
@position_encoding("normalized_index_concatenated", concatenate=True)
@keras.saving.register_keras_serializable(package="keras_transformer")
class NormalizedIndexPositionalEncoding(IndexPositionalEncoding):
    """Encodes each position as its index divided by `max_length`.

    With a `max_length` of 1,000 tokens, two neighbouring positions differ by only 0.001.

    Example:

    >>> NormalizedIndexPositionalEncoding(max_length=100)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Divisor of the index, in tokens.
        concatenate: See `IndexPositionalEncoding`.

    For the call arguments and the result, see `PositionalEncoding`.
    """

    def __init__(self, max_length: int, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(concatenate=concatenate, **kwargs)
        self.max_length = max_length

    def features(self, indices: Any) -> Any:
        return super().features(indices) / self.max_length


@position_encoding("binary")
@position_encoding("binary_concatenated", concatenate=True)
@keras.saving.register_keras_serializable(package="keras_transformer")
class BinaryPositionalEncoding(IndexPositionalEncoding):
    """Uses the binary digits of the position, lowest digit first, as features.

    Digits are bounded, but neighbouring positions can have distant vectors. From position 7 (1110)
    to position 8 (0001), every digit changes. The paper's sinusoids are a smooth version of binary
    digits.

    Example:

    >>> BinaryPositionalEncoding(max_length=128)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Maximum sequence length in tokens. A position has n = `ceil(log2(max_length))`
            digits, so all positions below 2^n differ. Position 2^n has the same digits as position
            0.
        concatenate: See `IndexPositionalEncoding`.

    For the call arguments and the result, see `PositionalEncoding`.
    """

    def __init__(self, max_length: int, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(concatenate=concatenate, **kwargs)
        self.max_length = max_length

    @property
    def num_features(self) -> int:
        return max((self.max_length - 1).bit_length(), 1)

    def features(self, indices: Any) -> Any:
        powers = 2 ** ops.arange(self.num_features, dtype="int32")
        return ops.cast((indices[..., None] // powers) % 2, "float32")
