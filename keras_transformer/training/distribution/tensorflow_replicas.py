"""Implements data parallelism on TensorFlow."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from keras_transformer.data import Shard
from keras_transformer.training.distribution import Distribution


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

    def prepare(self, trainer: Any) -> None:
        trainer.optimizer.reduce_gradients = self._sum
        trainer._distribute_strategy = None

    def train_function(self, trainer: Any) -> Callable[[Any], Any]:
        tf = self._tf

        def replica_step(batch: Any) -> Any:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group - self.shard.begin

            def rows(x: Any) -> Any:
                count = tf.shape(x)[0] // self._devices
                return x[index * count : (index + 1) * count]

            return trainer.train_step(tf.nest.map_structure(rows, batch))

        def step(batch: Any) -> Any:
            logs = self._strategy.run(replica_step, args=(batch,))
            values_of = self._strategy.experimental_local_results
            return {name: values_of(value)[0] for name, value in logs.items()}

        # Traced once, for the shapes that the iterator declares. If the shapes of the first batches
        # mattered, a resumed training would round differently.
        return tf.function(lambda iterator: step(next(iterator)))

    def assign_seed(self, state: Any, seed: int) -> None:
        for replica, part in enumerate(state.value.values, start=self.shard.begin):
            part.assign([(seed + replica) % 2**31, 0])

    def _sum(self, gradients: list[Any]) -> list[Any]:
        context = self._tf.distribute.get_replica_context()
        dense = [self._tf.convert_to_tensor(gradient) for gradient in gradients]
        return context.all_reduce(self._tf.distribute.ReduceOp.SUM, dense)

    def of_chief(self, flag: bool) -> bool:
        if self.shard.parts == self._devices:
            return flag
        own = self._tf.constant(float(flag and self.is_chief))
        return bool(self._count(own).numpy())

    def _sum_of_replicas(self, number: Any) -> Any:
        numbers = self._strategy.run(self._tf.identity, args=(number,))
        return self._strategy.reduce(self._tf.distribute.ReduceOp.SUM, numbers, axis=None)


def _rank(resolver: Any) -> int:
    """Returns the rank of this process. If `TF_CONFIG` has a `chief`, worker 0 has rank 1."""
    chiefs = resolver.cluster_spec().as_dict().get("chief", [])
    return resolver.task_id + (len(chiefs) if resolver.task_type == "worker" else 0)
