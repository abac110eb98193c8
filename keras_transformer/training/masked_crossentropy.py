"""Label-smoothed cross-entropy over real tokens (§5.4)."""

from typing import Any

import keras
from keras import ops


def token_crossentropy(labels: Any, logits: Any, label_smoothing: float = 0.0) -> Any:
    """Cross-entropy of every token against its smoothed label.

    The label gets probability 1 - ε + ε/V and every other piece ε/V. With z the logits and y the
    label that is logsumexp(z) - (1 - ε) z_y - ε mean(z), which needs no smoothed distribution in
    memory.

    Args:
        labels: Integer tensor (B, T).
        logits: Float tensor (B, T, V); computed on in float32.
        label_smoothing: Float ε in [0, 1].

    Returns:
        float32 tensor (B, T), nats.
    """
    logits = ops.cast(logits, "float32")
    labels = ops.cast(labels, "int32")
    label_logits = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)  # (B, T, 1)
    expected = ops.squeeze(label_logits, axis=-1)
    if label_smoothing:
        mean = ops.mean(logits, axis=-1)
        expected = (1.0 - label_smoothing) * expected + label_smoothing * mean
    return ops.logsumexp(logits, axis=-1) - expected


def token_weights(labels: Any, pad_id: int, sample_weight: Any = None) -> Any:
    """Weight of every token: 0 where `labels` is `pad_id`, else `sample_weight` (default 1).

    Args:
        labels: Integer tensor (B, T).
        pad_id: Integer.
        sample_weight: Float tensor (B, T), or (B,) for a weight per sentence.

    Returns:
        float32 tensor (B, T).
    """
    mask = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return mask
    sample_weight = ops.cast(sample_weight, "float32")
    if len(sample_weight.shape) == 1:
        sample_weight = ops.expand_dims(sample_weight, -1)
    return mask * sample_weight


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Cross-entropy in nats over real target tokens, with label smoothing (§5.4).

    Padding counts nothing, neither in the sum nor in the mean; a batch of nothing but padding
    gives 0. Smoothing spreads ε over the whole vocabulary, as `torch.nn.CrossEntropyLoss` does.
    Computed in float32 under every dtype policy.

    Example:

    ```python
    model.compile(optimizer, loss=MaskedCrossentropy(label_smoothing=0.1))
    ```

    For gradient accumulation that is exact per token use `reduction="sum"` and divide by the real
    tokens of the whole optimizer step in `sample_weight`, as `BatchPlan.batches()` does.

    Args:
        label_smoothing: Float ε in [0, 1], default 0; the paper takes 0.1.
        pad_id: Integer, the label that stands for padding.
        reduction: `"mean_with_sample_weight"` (mean over real tokens, weighted if there are
            weights), `"sum"` (of weighted token losses) or `None` ((B, T), one value a token).
        name: String.

    Call arguments:
        y_true: Integer labels (B, T).
        y_pred: Float logits (B, T, V).
        sample_weight: Optional float weights (B, T) or (B,).

    Returns:
        float32 scalar, nats per real target token, or what `reduction` says.

    Raises:
        ValueError: If `label_smoothing` is outside [0, 1] or `reduction` would count padding.

    Source:
        Szegedy et al., 2016, Rethinking the Inception Architecture for Computer Vision, §7.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "masked_crossentropy",
    ) -> None:
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(
                "`label_smoothing` must be between 0 and 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        if reduction not in ("mean_with_sample_weight", "sum", "none", None):
            raise ValueError(
                "`reduction` must be 'mean_with_sample_weight' (the mean over real tokens), 'sum' "
                f"or None; any other would count padding. Received: reduction={reduction!r}"
            )
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true = ops.convert_to_tensor(y_true)
        weights = token_weights(y_true, self.pad_id, sample_weight)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of every token, float32 (B, T), padding included."""
        return token_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "reduction": self.reduction,
            "name": self.name,
        }
