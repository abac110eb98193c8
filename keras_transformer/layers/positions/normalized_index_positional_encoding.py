"""Scales positions to fractions between 0 and 1."""

from typing import Any

import keras

from keras_transformer.errors import check_sizes
from keras_transformer.layers.positions.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import position_encoding


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
        check_sizes(max_length=max_length)
        self.max_length = max_length

    def features(self, indices: Any) -> Any:
        return super().features(indices) / self.max_length
