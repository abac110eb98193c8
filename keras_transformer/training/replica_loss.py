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
        # A loss of Keras is a mean over the last axis. `counts` sums the weights and masks of ones.
        self.counts.call = lambda y_true, y_pred: ops.ones_like(y_pred[..., 0])

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        part = self.sums(y_true, y_pred, sample_weight)
        if self.reduction != "sum":
            counted = sample_weight if self.reduction == "mean_with_sample_weight" else None
            count = ops.stop_gradient(self.counts(y_true, y_pred, counted))
            part = ops.divide_no_nan(part, self.distribution.total(count))
        return part * self.distribution.scale


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
