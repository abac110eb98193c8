"""Metrics that are means over the real target tokens."""

from typing import Any

import keras
from keras import ops

from keras_transformer.training.crossentropy import (
    checked_labels,
    token_crossentropy,
    token_weights,
)


class TokenMean(keras.metrics.Metric):
    """Computes the mean of a value over the real target tokens of all batches, in float32.

    Subclasses define `token_values(y_true, y_pred)`. This method returns the value of each token,
    as a float32 tensor (B, T).
    """

    def __init__(self, pad_id: int, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", dtype="float32", name="total")
        self.count = self.add_variable((), "zeros", dtype="float32", name="count")

    def token_values(self, y_true: Any, y_pred: Any) -> Any:
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_pred = ops.stop_gradient(ops.convert_to_tensor(y_pred))
        y_true = checked_labels(y_true, y_pred.shape[:-1])
        weights = token_weights(y_true, self.pad_id, sample_weight)
        y_true = ops.where(weights != 0, y_true, self.pad_id)  # NaN times 0 would be NaN
        self.add(ops.sum(weights * self.token_values(y_true, y_pred)), ops.sum(weights))

    def add(self, total: Any, count: Any) -> None:
        """Updates the mean with a weighted sum of values, `total`, and the sum of the weights."""
        self.total.assign_add(total)
        self.count.assign_add(count)

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)

    def get_config(self) -> dict[str, Any]:
        return {"pad_id": self.pad_id, "name": self.name}


class LossMean(TokenMean):
    """The mean loss per real target token.

    Keras's own mean counts rows. A batch of short sentences has many rows, so it would count more
    than a batch of long sentences with as many tokens.
    """

    def __init__(self) -> None:
        super().__init__(pad_id=0, name="loss")

    def update_state(self, *_: Any, **__: Any) -> None:
        """Does nothing. `SlicedLogitsTrainer.compute_loss` calls `add`."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMean):
    """Computes the share of real target tokens whose label has the highest logit.

    The result is 0 if there are no tokens.

    Example:

    ```python
    model.compile(optimizer, loss=MaskedCrossentropy(), metrics=[MaskedAccuracy()])
    ```

    Args:
        pad_id: Integer, the label of padding.
        name: String, default `"accuracy"`.

    Call arguments:
        y_true: Integer labels (B, T).
        y_pred: Float logits (B, T, V).
        sample_weight: Optional float weights (B, T) or (B,).

    Returns:
        float32 scalar in [0, 1].
    """

    def __init__(self, pad_id: int = 0, name: str = "accuracy") -> None:
        super().__init__(pad_id=pad_id, name=name)

    def token_values(self, y_true: Any, y_pred: Any) -> Any:
        prediction = ops.argmax(y_pred, axis=-1)
        return ops.cast(ops.equal(ops.cast(prediction, "int32"), y_true), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Computes the exponential of the mean cross-entropy over real target tokens.

    The cross-entropy has no label smoothing. The result is 1 if there are no tokens.

    Example:

    ```python
    model.compile(optimizer, loss=MaskedCrossentropy(label_smoothing=0.1), metrics=[Perplexity()])
    ```

    Args:
        pad_id: Integer, the label of padding.
        name: String, default `"perplexity"`.

    Call arguments:
        See `MaskedAccuracy`.

    Returns:
        float32 scalar, at least 1; NaN if a label that counts is outside the vocabulary.
    """

    def __init__(self, pad_id: int = 0, name: str = "perplexity") -> None:
        super().__init__(pad_id=pad_id, name=name)

    def token_values(self, y_true: Any, y_pred: Any) -> Any:
        return token_crossentropy(y_true, y_pred, self.pad_id)

    def crossentropy(self) -> Any:
        """Returns the mean cross-entropy in nats, also where its exponential overflows."""
        return super().result()

    def result(self) -> Any:
        return ops.exp(self.crossentropy())
