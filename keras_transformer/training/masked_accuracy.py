"""Share of real tokens predicted right."""

from typing import Any

import keras
from keras import ops

from keras_transformer.training.token_mean import TokenMean


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMean):
    """Share of real target tokens whose highest logit is the label's.

    Example:

    ```python
    model.compile(optimizer, loss=MaskedCrossentropy(), metrics=[MaskedAccuracy()])
    ```

    Args:
        pad_id: Integer, the label that stands for padding.
        name: String, default `"accuracy"`.

    Call arguments:
        y_true: Integer labels (B, T).
        y_pred: Float logits (B, T, V).
        sample_weight: Optional float weights (B, T) or (B,).

    Returns:
        float32 scalar in [0, 1].
    """

    def __init__(self, pad_id: int = 0, name: str = "accuracy", dtype: str | None = None) -> None:
        super().__init__(pad_id=pad_id, name=name, dtype=dtype)

    def token_values(self, y_true: Any, y_pred: Any) -> Any:
        """Return 1 where the prediction is right, else 0; float32 (B, T)."""
        prediction = ops.argmax(y_pred, axis=-1)
        return ops.cast(ops.equal(ops.cast(prediction, "int32"), y_true), "float32")
