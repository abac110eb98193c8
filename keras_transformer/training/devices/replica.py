"""Makes the training step of a model that of a replica, which gets a part of each batch."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_transformer._backend import replaced
from keras_transformer._backend.types import Tensor
from keras_transformer.errors import UserError
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.step.optimizer import inner_optimizer


@contextmanager
def as_replica(
    model: keras.Model,
    replicas: Distribution,
    reduce: Callable[[list[Tensor]], list[Tensor]],
    changes: dict[str, Any],
) -> Iterator[None]:
    """Makes a model train as one of several replicas in the `with` block.

    Its losses are then parts of the loss. `reduce` gets the gradients of each optimizer step once:
    after Keras has accumulated them, and before the optimizer clips them. `changes` are further
    attributes of the model in the block.
    """
    _check_model(model)
    optimizer = inner_optimizer(model)
    clip = optimizer._clip_gradients
    reduced_first = {
        "_clip_gradients": lambda gradients: clip(reduce(gradients)),
        "_all_reduce_sum_gradients": lambda pairs: pairs,
    }
    if isinstance(getattr(model, "distribution", None), Distribution):
        changes = {**changes, "distribution": replicas}  # a `SlicedLogitsTrainer`
    with (
        lost_processes_reported(),
        replaced(model, {"is_replica": True, **changes}),
        replica_losses(model, replicas),
        replaced(optimizer, reduced_first),
    ):
        yield


@contextmanager
def lost_processes_reported() -> Iterator[None]:
    """Raises `UserError` in the `with` block if another process of the training has ended."""
    try:
        yield
    except Exception as error:
        lost = r"gloo|nccl|collective ops|heartbeat|unavailable|connection \w+ by peer"
        if not re.search(lost, str(error), re.I):
            raise
        raise UserError(
            "another process of this training has ended or cannot be reached (see its messages). "
            "Start all processes again: `fit` resumes from the newest checkpoint"
        ) from error


class ReplicaLoss(keras.losses.Loss):
    """Computes a replica's part of a loss, so that the parts of all replicas add up to the loss.

    A mean is divided by what all replicas count, such as their real tokens. Otherwise, replicas
    with fewer tokens would weight each token more.
    """

    def __init__(self, loss: Any, replicas: Distribution) -> None:
        super().__init__(name=loss.name, reduction=loss.reduction)
        self.own, self.replicas = loss, replicas
        self.sums, self.counts = copy.copy(loss), copy.copy(loss)
        self.sums.reduction = self.counts.reduction = "sum"
        self.counts.call = lambda y_true, y_pred: _ones(y_pred)  # sums weights and masks

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        part = self.sums(y_true, y_pred, _of_values(sample_weight, y_pred))
        if self.reduction != "sum":
            counted = sample_weight if self.reduction == "mean_with_sample_weight" else None
            count = self.counts(y_true, y_pred, _of_values(counted, y_pred))
            part = ops.divide_no_nan(part, self.replicas.total(count))
        return part * self.replicas.scale


def _ones(y_pred: Tensor) -> Tensor:
    """Returns ones in the shape of the values of a loss, a mean over the last axis of `y_pred`."""
    return ops.ones_like(y_pred[..., 0], dtype="float32")


def _of_values(weights: Tensor | None, y_pred: Tensor) -> Tensor | None:
    """Returns a new tensor of weights (B,), (B, 1) or (B, T) in the shape of a loss's values.

    Keras does not broadcast the weights of rows, and on PyTorch, it overwrites weights.
    """
    if weights is None:
        return None
    rank = len(y_pred.shape) - 1
    shape = (*ops.shape(weights), *[1] * rank)[:rank]
    return _ones(y_pred) * ops.cast(ops.reshape(weights, shape), "float32")


@contextmanager
def replica_losses(model: keras.Model, replicas: Distribution) -> Iterator[None]:
    """Makes the losses of a compiled model `ReplicaLoss` objects in the `with` block."""
    compiled = model._compile_loss
    if compiled is None:  # The model computes its loss itself, as a `SlicedLogitsTrainer` does.
        yield
        return

    def exchange(change: Callable[[Any], object]) -> None:
        compiled._flat_losses = [x._replace(loss=change(x.loss)) for x in compiled._flat_losses]

    def build(*arguments: object) -> None:
        type(compiled).build(compiled, *arguments)
        exchange(lambda loss: ReplicaLoss(loss, replicas))

    if compiled.built:
        exchange(lambda loss: ReplicaLoss(loss, replicas))
    compiled.build = build
    try:
        yield
    finally:
        del compiled.build
        if compiled.built:
            exchange(lambda loss: loss.own)


def _check_model(model: keras.Model) -> None:
    """Raises `UserError` for a model that replicas would train to other weights."""
    optimizer = inner_optimizer(model)
    layers = model._flatten_layers()
    on_tensorflow = keras.config.backend() == "tensorflow"
    unsupported = {
        "ema_overwrite_frequency": on_tensorflow and optimizer.ema_overwrite_frequency,
        # Each replica would use the statistics of its own tokens, or a loss scale of its own.
        "BatchNormalization": any(
            isinstance(x, keras.layers.BatchNormalization) and x.trainable for x in layers
        ),
        "mixed_float16": optimizer is not model.optimizer,
    }
    if found := [name for name, is_used in unsupported.items() if is_used]:
        raise UserError(
            f"{keras.config.backend()} cannot train on several devices with "
            f"{' and '.join(found)}: use KERAS_BACKEND=jax"
        )
