"""Trains on all devices of TensorFlow, with `tf.distribute`."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras

from keras_transformer._backend.types import Tensor
from keras_transformer.data import Shard
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.step.replica_step import replica_train_function


def all_devices() -> Distribution:
    """See `Distribution.all_devices`."""
    return TensorFlowReplicas()


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
            self.rank = _rank(self._strategy.cluster_resolver)
        else:
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            devices = [device.name for device in tf.config.list_logical_devices(kind)]
            self._strategy = tf.distribute.MirroredStrategy(devices)
        self._devices = len(self._strategy.extended.worker_devices)
        begin = self.rank * self._devices
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
            "train_function": replica_train_function(model, self._strategy, self.shard.begin),
            "make_train_function": lambda force=False: None,
        }
        with self._as_replica(model, self._sum, changes):
            yield

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


def _rank(resolver: Any) -> int:
    """Returns the rank of this process. If `TF_CONFIG` has a `chief`, worker 0 has rank 1."""
    chiefs = resolver.cluster_spec().as_dict().get("chief", [])
    return resolver.task_id + (len(chiefs) if resolver.task_type == "worker" else 0)
