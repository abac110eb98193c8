"""Trains on all devices of TensorFlow, with `tf.distribute`."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
from keras import ops

from keras_transformer._backend import replaced
from keras_transformer._backend.types import Tensor
from keras_transformer.data import Shard
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.devices.replica import as_replica
from keras_transformer.training.step.optimizer import inner_optimizer

Logs = dict[str, Tensor]


class TensorFlowReplicas(Distribution):
    """Trains with `MirroredStrategy`, or with `MultiWorkerMirroredStrategy` if `TF_CONFIG` is set.

    The model is made in the strategy's scope, but `fit` runs outside of it. Inside, it would clip
    the gradients of each replica before it sums them, and fail with several workers.
    """

    needs_copy = True

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        if "TF_CONFIG" in os.environ:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        else:
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            devices = [device.name for device in tf.config.list_logical_devices(kind)]
            self._strategy = tf.distribute.MirroredStrategy(devices)
        self._devices = len(self._strategy.extended.worker_devices)
        numbers = self._strategy.experimental_distribute_values_from_function(
            lambda replica: replica.replica_id_in_sync_group
        )
        begin = self._strategy.experimental_local_results(numbers)[0]
        self.rank = begin // self._devices
        replicas = self._strategy.num_replicas_in_sync
        self.shard = Shard(begin, begin + self._devices, replicas)
        self.gradient_parts = replicas
        self._count = tf.function(self._sum_of_replicas)

    def making(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    @contextmanager
    def fitting(self, model: keras.Model) -> Iterator[None]:
        changes = {
            "_distribute_strategy": None,
            "train_function": self._train_function(model),
            "make_train_function": lambda force=False: None,
        }
        with as_replica(model, self, self._sum, changes):
            yield

    def _train_function(self, model: keras.Model) -> Callable[[Iterator[Any]], Logs]:
        """Returns a `train_function` for `model.fit`, which trains a replica on each device."""
        tf, optimizer = self._tf, inner_optimizer(model)
        accumulation = optimizer.gradient_accumulation_steps

        def micro_step(is_last: bool, batch: object) -> Logs:
            apply = functools.partial(_apply_micro_batch, optimizer, is_last)
            with replaced(optimizer, {"_backend_apply_gradients": apply}):
                return self._step(model, batch)

        def step(batch: object) -> Logs:
            if not accumulation:
                return self._step(model, batch)
            # Keras branches within `strategy.run`, where replicas cannot communicate in a branch.
            is_last = (optimizer._iterations + 1) % accumulation == 0
            return tf.cond(
                is_last, lambda: micro_step(True, batch), lambda: micro_step(False, batch)
            )

        # Traced once, for the shapes that the iterator declares. If the shapes of the first batches
        # mattered, a resumed training would round differently.
        traced = tf.function(lambda iterator: step(next(iterator)))

        def train(iterator: Iterator[Any]) -> Logs:
            with self._strategy.scope():  # Metrics get variables before a replica needs them.
                model._symbolic_build(data_batch=iterator.element_spec)  # type: ignore[attr-defined]
            return traced(iterator)

        return train

    def _step(self, model: keras.Model, batch: object) -> Logs:
        """Calls `model.train_step` in each local replica with its rows of a batch."""
        tf = self._tf

        def replica_step(batch: object) -> Logs:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group

            def rows(x: Tensor) -> Tensor:
                count = tf.shape(x)[0] // self._devices
                first = (index - self.shard.begin) * count
                return x[first : first + count]

            return model.train_step(tf.nest.map_structure(rows, batch))

        logs = self._strategy.run(replica_step, args=(batch,))
        values_of = self._strategy.experimental_local_results
        return {name: values_of(value)[0] for name, value in logs.items()}

    def total(self, number: Tensor) -> Tensor:
        return self._sum([number])[0] if self._tf.distribute.get_replica_context() else number

    def assign_seed(self, state: keras.Variable, seed: int) -> None:
        for replica, part in enumerate(state.value.values, start=self.shard.begin):
            part.assign([(seed + replica) % 2**31, 0])

    def _sum(self, gradients: list[Tensor]) -> list[Tensor]:
        context = self._tf.distribute.get_replica_context()
        dense = [self._tf.convert_to_tensor(gradient) for gradient in gradients]
        return context.all_reduce(self._tf.distribute.ReduceOp.SUM, dense)

    def of_chief(self, flag: bool) -> bool:
        if self.shard.parts == self._devices:
            return flag
        own = self._tf.constant(float(flag and self.is_chief))
        return bool(self._count(own).numpy())

    def _sum_of_replicas(self, number: Tensor) -> Tensor:
        numbers = self._strategy.run(self._tf.identity, args=(number,))
        return self._strategy.reduce(self._tf.distribute.ReduceOp.SUM, numbers, axis=None)


def _apply_micro_batch(
    optimizer: keras.Optimizer, is_last: bool, gradients: list[Tensor], variables: list[Any]
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


all_devices = TensorFlowReplicas  # of `Distribution.all_devices`
