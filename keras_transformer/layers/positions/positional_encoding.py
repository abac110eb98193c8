"""The interface of all position encodings, and the angles that two of them share."""

import math
from typing import Any

import keras
from keras import ops


def positions(length: Any, offset: Any = 0) -> Any:
    """Returns the int32 positions `offset, ..., offset + length - 1`, shape `(T,)`."""
    return ops.arange(length, dtype="int32") + ops.cast(offset, "int32")


def sinusoid_angles(length: Any, width: int, offset: Any = 0) -> Any:
    """Returns the float32 angles `position / 10000^(2i / width)`, shape `(T, ceil(width / 2))`.

    Float32 whatever the dtype policy: bfloat16 cannot tell position 257 from position 256.
    """
    rates = ops.exp(ops.arange(0, width, 2, dtype="float32") * (-math.log(10_000.0) / width))
    return ops.cast(positions(length, offset), "float32")[:, None] * rates


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(keras.layers.Layer):
    """Where a token stands: the two places at which a position can enter the Transformer.

    `call` adds positions to the embeddings, `rotate` turns the queries and keys of self-attention.
    Either does nothing here; a subclass overrides the one it needs. Both take the offset of the
    first position, so that decoding one token at a time agrees with decoding all at once.

    Call arguments:
        embeddings: float tensor `(B, T, D)`.
        offset: Position of the first token, an int or a 0-d int tensor. Defaults to 0.

    Returns:
        A float tensor `(B, T, D)` in the compute dtype.
    """

    def call(self, embeddings: Any, offset: Any = 0) -> Any:
        return embeddings

    def compute_output_shape(self, embeddings_shape: Any) -> Any:
        # Without it Keras would try `call` with a made-up length, which may exceed a maximum.
        return embeddings_shape

    def rotate(self, heads: Any, offset: Any = 0) -> Any:
        """Turns queries or keys by their positions.

        Args:
            heads: float tensor `(..., T, K)`.
            offset: Position of the first row along T, an int or a 0-d int tensor.

        Returns:
            A float tensor of the same shape and dtype.
        """
        return heads

    def add_to(self, embeddings: Any, encoding: Any) -> Any:
        """Adds a float32 `encoding` `(T, D)` to `embeddings` `(B, T, D)` in float32."""
        total = ops.cast(embeddings, "float32") + encoding
        return ops.cast(total, self.compute_dtype)
