"""The binary digits of the index."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import position_encoding


@position_encoding("binary")
@position_encoding("binary_concatenated", concatenate=True)
@keras.saving.register_keras_serializable(package="keras_transformer")
class BinaryPositionalEncoding(IndexPositionalEncoding):
    """The binary digits of the index, lowest first: bounded and distinct, but it jumps.

    From 7 (111) to 8 (0001) every digit changes, from 8 to 9 only one: near positions are not near
    vectors. The sinusoids of the paper are its smooth relative.

    Example:

    >>> BinaryPositionalEncoding(max_length=128)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Number of positions, in tokens; `ceil(log2(max_length))` digits tell them apart,
            and positions beyond start again at zero.
        concatenate: Appended (and projected back to D) instead of added. Defaults to False.

    Call arguments:
        embeddings: float tensor `(B, T, D)`.
        offset: Position of the first token, an int or a 0-d int tensor. Defaults to 0.

    Returns:
        A float tensor `(B, T, D)` in the compute dtype.
    """

    def __init__(self, max_length: int, concatenate: bool = False, **kwargs: Any) -> None:
        super().__init__(concatenate=concatenate, **kwargs)
        self.max_length = max_length

    @property
    def num_features(self) -> int:
        return max((self.max_length - 1).bit_length(), 1)

    def features(self, indices: Any) -> Any:
        powers = 2 ** ops.arange(self.num_features, dtype="int32")
        return ops.cast((indices[:, None] // powers) % 2, "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_length": self.max_length}
