"""The loss of a replica that gets a part of each batch."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops


class ReplicaLoss(keras.losses.Loss):
    """Computes a replica's part of a loss, so that the parts of all replicas add up to the loss.

    A mean is divided by what all replicas count, such as their real tokens. Otherwise, replicas
    with fewer tokens would weight each token more.
    """

    def __init__(self, loss: Any, distribution: Any) -> None:
        super().__init__(name=loss.name, reduction=loss.reduction)
        self.own, self.distribution = loss, distribution
        self.sums, self.counts = copy.copy(loss), copy.copy(loss)
        self.sums.reduction = self.counts.reduction = "sum"
        self.counts.call = lambda y_true, y_pred: _ones(y_pred)  # sums weights and masks

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        part = self.sums(y_true, y_pred, _of_values(sample_weight, y_pred))
        if self.reduction != "sum":
            counted = sample_weight if self.reduction == "mean_with_sample_weight" else None
            count = self.counts(y_true, y_pred, _of_values(counted, y_pred))
            part = ops.divide_no_nan(part, self.distribution.total(count))
        return part * self.distribution.scale


def _ones(y_pred: Any) -> Any:
    """Returns ones in the shape of the values of a loss, a mean over the last axis of `y_pred`."""
    return ops.ones_like(y_pred[..., 0], dtype="float32")


def _of_values(weights: Any, y_pred: Any) -> Any:
    """Returns a new tensor of weights (B,), (B, 1) or (B, T) in the shape of a loss's values.

    Keras does not broadcast the weights of rows, and on PyTorch, it overwrites weights.
    """
    if weights is None:
        return None
    rank = len(y_pred.shape) - 1
    if len(weights.shape) > rank:
        weights = ops.reshape(weights, ops.shape(weights)[:rank])  # without axes of size 1
    while len(weights.shape) < rank:
        weights = ops.expand_dims(weights, -1)
    return _ones(y_pred) * ops.cast(weights, "float32")


@contextmanager
def replica_losses(model: Any, distribution: Any) -> Iterator[None]:
    """Makes the losses of a compiled model `ReplicaLoss` objects in the `with` block."""
    compiled = model._compile_loss
    if compiled is None:  # The model computes its loss itself, as a `SlicedLogitsTrainer` does.
        yield
        return

    def exchange(change: Any) -> None:
        compiled._flat_losses = [x._replace(loss=change(x.loss)) for x in compiled._flat_losses]

    def build(*arguments: Any) -> None:
        type(compiled).build(compiled, *arguments)
        exchange(lambda loss: ReplicaLoss(loss, distribution))

    if compiled.built:
        exchange(lambda loss: ReplicaLoss(loss, distribution))
    compiled.build = build
    try:
        yield
    finally:
        del compiled.build
        if compiled.built:
            exchange(lambda loss: loss.own)
