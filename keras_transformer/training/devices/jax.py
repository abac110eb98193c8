"""Trains on all devices of JAX, with `keras.distribution`."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.data import Shard
from keras_transformer.errors import UserError
from keras_transformer.models.crossentropy import sliced_crossentropy
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.devices.replica import lost_processes_reported, replica_losses

BATCH, MODEL = "batch", "model"  # the axes of `JaxMesh`


class JaxMesh(Distribution):
    """Trains on a mesh of all devices of all processes, with `keras.distribution`.

    XLA splits the training step of the whole batch over the devices. With `model_shards` > 1, each
    copy of the weights is also split over `model_shards` devices (see `layout_map`).
    """

    needs_copy = True

    def __init__(self, model_shards: int = 1) -> None:
        import jax

        if int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1")) > 1:
            keras.distribution.initialize()
        self.rank = jax.process_index()
        counts = jax.process_count(), jax.local_device_count()
        self.shard = shard_of(self.rank, *counts, model_shards)
        devices = keras.distribution.list_devices()
        shape = len(devices) // model_shards, model_shards
        mesh = keras.distribution.DeviceMesh(shape, (BATCH, MODEL), devices)
        self._distribution = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name=BATCH, auto_shard_dataset=False
        )

    def making(self) -> AbstractContextManager[Any]:
        return self._distribution.scope()

    @contextmanager
    def fitting(self, model: keras.Model) -> Iterator[None]:
        with lost_processes_reported(), self.making(), replica_losses(model, self):
            yield

    def crossentropy(self, states: Tensor, *data: Any, **settings: Any) -> Tensor:
        """Computes `sliced_crossentropy` of each replica's tokens, and sums the results.

        Without separate sums, XLA would compute the logits of all tokens in every replica.
        """
        if self._distribution.device_mesh.shape[1] > 1:  # XLA cannot compile the sum.
            return sliced_crossentropy(states, *data, **settings)
        import jax
        from jax.sharding import PartitionSpec

        _, labels, _ = data
        teacher = settings["teacher"]
        passes = (-1, labels.shape[0], states.shape[-1])  # axis 0: forward passes; two with R-Drop
        whole, by_rows = PartitionSpec(), PartitionSpec(BATCH)
        of_teacher = (by_rows, whole)[: len(teacher)]

        def of_replica(teacher: tuple[Tensor, ...], states: Tensor, *data: Any) -> Tensor:
            states = ops.reshape(states, (-1, states.shape[-1]))
            sums = sliced_crossentropy(states, *data, **settings | {"teacher": teacher})
            return jax.lax.psum(sums, BATCH)

        in_replicas = jax.shard_map(
            of_replica,
            mesh=self._distribution.device_mesh.backend_mesh,
            in_specs=(of_teacher, PartitionSpec(None, BATCH), whole, by_rows, by_rows),
            out_specs=whole,
            check_vma=False,
        )
        return in_replicas(teacher, ops.reshape(states, passes), *data)

    @contextmanager
    def alone(self) -> Iterator[None]:
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(self._distribution)

    def read(self, variable: keras.Variable) -> np.ndarray:
        from jax.experimental import multihost_utils

        if variable.value.is_fully_replicated or variable.value.is_fully_addressable:
            return np.asarray(variable.value)
        return multihost_utils.process_allgather(variable.value, tiled=True)

    def of_chief(self, flag: bool) -> bool:
        from jax.experimental import multihost_utils

        return bool(multihost_utils.broadcast_one_to_all(np.int32(flag)))


def shard_of(process: int, processes: int, devices: int, model_shards: int) -> Shard:
    """Returns the part of a batch's rows that the process with index `process` gets.

    Each process has `devices` devices. Each group of `model_shards` devices shares one copy of the
    weights and gets the same rows.
    """
    if processes * devices % model_shards or (devices % model_shards and model_shards % devices):
        raise UserError(
            "training.model_shards must divide the total number of devices. It must also divide "
            "the number of devices per process, or be a multiple of this number. "
            f"Received: model_shards={model_shards}, {processes} processes of {devices} devices"
        )
    begin = process * devices // model_shards
    end = begin + max(1, devices // model_shards)
    return Shard(begin, end, processes * devices // model_shards)


def layout_map(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Returns the layout of a `Transformer`'s weights on a mesh with axes `batch` and `model`.

    Attention weights are split by heads, feed-forward weights by inner units, and embeddings and
    the bias of the logits by tokens, as in Shoeybi et al., 2019, Megatron-LM: Training
    Multi-Billion Parameter Language Models Using Model Parallelism, §3. All other weights are
    replicated.
    """
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*attention/(query|key|value)/kernel"] = (None, MODEL)
    layouts[".*attention/(query|key|value)/bias"] = (MODEL,)
    layouts[".*attention/output/kernel"] = (MODEL, None)
    layouts[".*feed_forward/inner/kernel"] = (None, MODEL)
    layouts[".*feed_forward/inner/bias"] = (MODEL,)
    layouts[".*feed_forward/outer/kernel"] = (MODEL, None)
    layouts[".*embedding/(output_)?embeddings"] = (MODEL, None)
    layouts[".*embedding/bias"] = (MODEL,)
    return layouts


all_devices = JaxMesh  # of `Distribution.all_devices`
