"""The index divided by a fixed maximum length."""

from typing import Any

import keras

from keras_transformer.layers.positions.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import position_encoding


@position_encoding("normalized_index")
@position_encoding("normalized_index_concatenated", concatenate=True)
@keras.saving.register_keras_serializable(package="keras_transformer")
class NormalizedIndexPositionalEncoding(IndexPositionalEncoding):
    """The index divided by a fixed maximum length: bounded, but neighbours hardly differ.

    With the maximum at 1,000 tokens, two neighbours differ by 0.001, and the number says less the
    longer the maximum is.

    Example:

    >>> NormalizedIndexPositionalEncoding(max_length=100)(np.zeros((1, 50, 64), "float32"))

    Args:
        max_length: Length, in tokens, that the index is divided by.
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

    def features(self, indices: Any) -> Any:
        return super().features(indices) / self.max_length

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_length": self.max_length}
