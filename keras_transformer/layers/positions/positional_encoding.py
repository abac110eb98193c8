"""The base class of the position encodings, a registry of names, and sinusoid angles."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.types import Shape, Size, Tensor
from keras_transformer.layers.base import ConfiguredLayer, Registry

# Subclasses of `PositionalEncoding`. Models offer their constructors `max_length`, `num_heads`,
# `initializer` and `max_wavelength`.
POSITION_ENCODINGS = Registry("position_encoding")
position_encoding = POSITION_ENCODINGS.register


def positions(length: Size, offset: Size = 0) -> Any:
    """Returns int32 positions from `offset` on, `(length,)`, or `(B, length)` for `(B, 1)`.

    An `offset` `(length,)` is added to 0, 1, ..., `length` - 1.
    """
    offset = offset if isinstance(offset, int) else ops.cast(offset, "int32")
    return ops.arange(length, dtype="int32") + offset


def sinusoid_angles(
    length: Size,
    width: int,
    offset: Size = 0,
    timescales: str = "paper",
    max_wavelength: float = 10_000.0,
) -> Any:
    """Returns float32 angles `position / max_wavelength^(2i / width)`, `(..., T, ceil(width / 2))`.

    In bfloat16, positions 256 and 257 would be equal. For `timescales`, see
    `SinusoidalPositionalEncoding`.
    """
    count = -(-width // 2)
    span = width / 2 if timescales == "paper" else max(count - 1, 1)
    rates = ops.exp(ops.arange(count, dtype="float32") * (-math.log(max_wavelength) / span))
    return ops.cast(positions(length, offset), "float32")[..., None] * rates


@position_encoding("none")
class PositionalEncoding(ConfiguredLayer):
    """Base class of the position encodings. Subclasses override `call`, `rotate` or `score_bias`.

    `call` adds positions to the embeddings. In self-attention, `rotate` rotates queries and keys,
    and `score_bias` returns a bias for the scores. The base class itself encodes no positions.

    Call arguments:
        embeddings: float tensor `(B, T, D)`, also the shape of the result.
        offset: Position of the first token, an int or a 0-d int tensor, or an int tensor `(B, 1)`
            with one position per sequence. Positions below 0 are those of padding. Defaults to 0.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Attention layers do not use `call`, and Keras quantizes no model with a layer not built.
        self.built = type(self).build is keras.layers.Layer.build

    def call(self, embeddings: Tensor, offset: Size = 0) -> Any:
        return embeddings

    def compute_output_shape(self, input_shape: Shape) -> Any:  # The name is that of `build`.
        # Keras would infer the shape by `call`, with a sequence that may exceed the maximum.
        return input_shape

    def rotate(self, heads: Tensor, offset: Size = 0) -> Any:
        """Rotates queries or keys, float `(B, H, T, K)`. The first has the position `offset`.

        The `offset` can be an int tensor `(B, 1)`, as for `call`, or that of a `DecodingStep`.
        """
        return heads

    def score_bias(self, distance: Tensor) -> Any:
        """Returns the bias of the scaled scores, float32 `(H, ...)`, or None if there is no bias.

        `distance` is an int32 tensor `(...)`, the query position minus the key position.
        """
        return None

    @property
    def has_score_bias(self) -> bool:
        """Whether `score_bias` returns a bias."""
        return type(self).score_bias is not PositionalEncoding.score_bias

    def for_attention(self) -> "PositionalEncoding | None":
        """Returns the encoding, or None if it only changes the embeddings, in `call`."""
        base, own = PositionalEncoding, type(self)
        return self if self.has_score_bias or own.rotate is not base.rotate else None

    def check_length(self, length: int) -> None:
        """Raises `ValueError` if the encoding has a maximum length and `length` exceeds it."""

    def for_decoder(self) -> "PositionalEncoding":
        """Returns the encoding for the decoder, by default `self`."""
        return self

    def add_to(self, embeddings: Tensor, encoding: Tensor) -> Any:
        """Adds `encoding` `(T, D)` or `(B, T, D)` to `embeddings` `(B, T, D)` in float32."""
        total = ops.cast(embeddings, "float32") + encoding
        return ops.cast(total, self.compute_dtype)
