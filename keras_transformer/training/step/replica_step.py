"""The training step of TensorFlow on several devices."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.training.step.optimizer import inner_optimizer
from keras_transformer.training.step.replica import replaced

Logs = dict[str, Tensor]


def replica_train_function(
    model: keras.Model, strategy: Any, first_replica: int
) -> Callable[[Iterator[Any]], Logs]:
    """Returns a `train_function` for `model.fit`, which trains a replica on each local device.

    Each replica calls `model.train_step` with its rows of the batch of this process. The local
    replicas have the indices from `first_replica` on.
    """
    import tensorflow as tf

    devices = len(strategy.extended.worker_devices)

    def replica_step(batch: Any) -> Logs:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group - first_replica

        def rows(x: Tensor) -> Tensor:
            count = tf.shape(x)[0] // devices
            return x[index * count : (index + 1) * count]

        return model.train_step(tf.nest.map_structure(rows, batch))

    def step(batch: Any) -> Logs:
        logs = strategy.run(replica_step, args=(batch,))
        values_of = strategy.experimental_local_results
        return {name: values_of(value)[0] for name, value in logs.items()}

    optimizer = inner_optimizer(model)
    accumulation = optimizer.gradient_accumulation_steps

    def micro_step(is_last: bool, batch: Any) -> Logs:
        apply = functools.partial(_apply_micro_batch, optimizer, is_last)
        with replaced(optimizer, {"_backend_apply_gradients": apply}):
            return step(batch)

    def accumulating_step(batch: Any) -> Logs:
        # Keras branches within `strategy.run`, where replicas cannot communicate in a branch.
        is_last = (optimizer._iterations + 1) % accumulation == 0
        return tf.cond(is_last, lambda: micro_step(True, batch), lambda: micro_step(False, batch))

    # Traced once, for the shapes that the iterator declares. If the shapes of the first batches
    # mattered, a resumed training would round differently.
    chosen = accumulating_step if accumulation else step
    traced = tf.function(lambda iterator: chosen(next(iterator)))

    def train(iterator: Iterator[Any]) -> Logs:
        with strategy.scope():  # Metrics get variables before a replica needs them.
            model._symbolic_build(data_batch=iterator.element_spec)  # type: ignore[attr-defined]
        return traced(iterator)

    return train


def _apply_micro_batch(
    optimizer: Any, is_last: bool, gradients: list[Tensor], variables: list[Any]
) -> None:
    """Accumulates gradients as Keras does, and updates weights after the last micro-batch."""
    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(x)] for x in variables]
    for total, gradient in zip(sums, gradients, strict=True):
        total.assign(total + gradient)
    if is_last:
        means = [total / optimizer.gradient_accumulation_steps for total in sums]
        means = optimizer._clip_gradients(means)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)
        for total in sums:
            total.assign(ops.zeros_like(total))
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
