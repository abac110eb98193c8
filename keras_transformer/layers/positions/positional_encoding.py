"""The interface of all position encodings, their names, and the angles that two of them share."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

# Name to class, and the arguments of the variant. Each encoding's file adds its own.
POSITION_ENCODINGS: dict[str, tuple[type["PositionalEncoding"], dict[str, Any]]] = {}


def position_encoding(name: str, **arguments: Any) -> Callable[[type], type]:
    """Returns a decorator that registers a `PositionalEncoding` with `arguments` under a name."""

    def register(encoding: type) -> type:
        POSITION_ENCODINGS[name] = (encoding, arguments)
        return encoding

    return register


def new_position_encoding(
    encoding: str, sizes: dict[str, Any], **kwargs: Any
) -> "PositionalEncoding":
    """Makes the position encoding of a name.

    Args:
        encoding: A registered name.
        sizes: Arguments that some encodings need: `max_length`, `num_heads`. The constructor gets
            those that it takes.
        **kwargs: Arguments that all encodings take: `name`, `dtype`.

    Raises:
        ValueError: If there is no such encoding.
    """
    if encoding not in POSITION_ENCODINGS:
        raise ValueError(
            f"`position_encoding` must be one of {list(POSITION_ENCODINGS)}. "
            f"Received: position_encoding={encoding!r}"
        )
    constructor, arguments = POSITION_ENCODINGS[encoding]
    taken = inspect.signature(constructor).parameters
    needed = {name: size for name, size in sizes.items() if name in taken}
    return constructor(**needed, **arguments, **kwargs)


def positions(length: Any, offset: Any = 0) -> Any:
    """Returns the int32 positions `offset, ..., offset + length - 1`, shape `(T,)`."""
    return ops.arange(length, dtype="int32") + ops.cast(offset, "int32")


def sinusoid_angles(length: Any, width: int, offset: Any = 0) -> Any:
    """Returns the float32 angles `position / 10000^(2i / width)`, shape `(T, ceil(width / 2))`.

    Float32 whatever the dtype policy: bfloat16 cannot tell position 257 from position 256.
    """
    rates = ops.exp(ops.arange(0, width, 2, dtype="float32") * (-math.log(10_000.0) / width))
    return ops.cast(positions(length, offset), "float32")[:, None] * rates


@position_encoding("none")
@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(keras.layers.Layer):
    """Where a token stands: the three places at which a position can enter the Transformer.

    `call` adds positions to the embeddings, `rotate` turns the queries and keys of self-attention,
    `score_bias` is added to its scores. All do nothing here; a subclass overrides what it needs.
    `call` and `rotate` take the offset of the first position, so that decoding one token at a time
    agrees with decoding all at once.

    Call arguments:
        embeddings: float tensor `(B, T, D)`.
        offset: Position of the first token, an int or a 0-d int tensor. Defaults to 0.

    Returns:
        A float tensor `(B, T, D)` in the compute dtype.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

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

    def score_bias(self, distance: Any) -> Any:
        """Returns what is added to the scaled scores of self-attention.

        Args:
            distance: int32 tensor of any shape, the query's position minus the key's.

        Returns:
            A float32 tensor `(H, ...)`, the bias of each head at each distance; None for no bias.
        """
        return None

    @property
    def has_score_bias(self) -> bool:
        """Whether `score_bias` returns a bias."""
        return type(self).score_bias is not PositionalEncoding.score_bias

    def check_length(self, length: int) -> None:
        """Raises `ValueError` if there is no position for the last of `length` tokens."""

    def for_decoder(self) -> "PositionalEncoding":
        """Returns the encoding of the decoder, if this is the encoder's: by default the same."""
        return self

    def add_to(self, embeddings: Any, encoding: Any) -> Any:
        """Adds a float32 `encoding` `(T, D)` to `embeddings` `(B, T, D)` in float32."""
        total = ops.cast(embeddings, "float32") + encoding
        return ops.cast(total, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        # Keras records the arguments of classes without it, but no dtype policies.
        return super().get_config()
