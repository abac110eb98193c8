"""Encodes positions as raw indices. The binary and normalized encodings are subclasses."""

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
        d_model = input_shape[-1]
        if self.concatenate:
            self.projection = Dense(
                d_model, use_bias=False, dtype=self.dtype_policy, name="projection"
            )
            self.projection.build((None, None, d_model + self.num_features))
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
