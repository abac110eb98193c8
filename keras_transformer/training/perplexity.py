"""Perplexity of the unsmoothed cross-entropy."""

from typing import Any

import keras
from keras import ops

from keras_transformer.training.masked_crossentropy import token_crossentropy
from keras_transformer.training.token_mean import TokenMean


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Exponential of the mean cross-entropy per real target token, never smoothed.

    Example:

    ```python
    model.compile(optimizer, loss=MaskedCrossentropy(label_smoothing=0.1), metrics=[Perplexity()])
    ```

    Args:
        pad_id: Integer, the label that stands for padding.
        name: String, default `"perplexity"`.

    Call arguments:
        y_true: Integer labels (B, T).
        y_pred: Float logits (B, T, V).
        sample_weight: Optional float weights (B, T) or (B,).

    Returns:
        float32 scalar, at least 1.
    """

    def __init__(self, pad_id: int = 0, name: str = "perplexity", dtype: str | None = None) -> None:
        super().__init__(pad_id=pad_id, name=name, dtype=dtype)

    def token_values(self, y_true: Any, y_pred: Any) -> Any:
        """Return the cross-entropy of every token, float32 (B, T), nats."""
        return token_crossentropy(y_true, y_pred)

    def result(self) -> Any:
        """Return the perplexity so far; 1 before the first real token."""
        return ops.exp(super().result())
