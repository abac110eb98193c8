"""Encodes positions as binary digits."""

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import check_sizes
from keras_transformer.layers.positions.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import position_encoding


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
        check_sizes(max_length=max_length)
        self.max_length = max_length

    @property
    def num_features(self) -> int:
        return max((self.max_length - 1).bit_length(), 1)

    def features(self, indices: Any) -> Any:
        powers = 2 ** ops.arange(self.num_features, dtype="int32")
        return ops.cast((indices[..., None] // powers) % 2, "float32")
