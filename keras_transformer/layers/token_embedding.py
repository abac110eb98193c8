"""Token embedding and, with the same matrix, the output projection."""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(keras.layers.Layer):
    """Ids to vectors times sqrt(d_model), and back to logits with the same matrix (§3.4).

    The matrix is drawn from N(0, 1 / d_model), so that the scaled vectors have unit variance and
    the logits of the tied projection start at a moderate size.
    `keras_hub.layers.ReversibleEmbedding` ties the matrix too, but leaves the scaling and the
    matching initialization to its user.

    Example:

    >>> embedding = TokenEmbedding(vocabulary_size=1000, d_model=64)
    >>> vectors = embedding(np.array([[5, 6, 7]]))          # (1, 3, 64)
    >>> logits = embedding(vectors, reverse=True)           # (1, 3, 1000)

    Args:
        vocabulary_size: Number of tokens V.
        d_model: Width D of the vectors.

    Call arguments:
        inputs: int tensor `(B, T)` of ids, or, with `reverse=True`, float tensor `(B, T, D)`.
        reverse: Whether to project vectors to logits. Defaults to False.

    Returns:
        A float tensor in the compute dtype: `(B, T, D)`, or `(B, T, V)` with `reverse=True`.

    Source: Vaswani et al. 2017, §3.4; Press and Wolf 2017 for the shared matrix.
    """

    def __init__(self, vocabulary_size: int, d_model: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.d_model),
            initializer=keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
        )
        self.built = True

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            return ops.matmul(inputs, ops.transpose(self.embeddings))
        return ops.take(self.embeddings, inputs, axis=0) * math.sqrt(self.d_model)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "vocabulary_size": self.vocabulary_size, "d_model": self.d_model}
