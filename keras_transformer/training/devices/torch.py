"""Trains in several processes of PyTorch, each with one device."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import keras
import numpy as np

from keras_transformer._backend import replaced
from keras_transformer._backend.operations import whole_tensor
from keras_transformer._backend.types import Tensor
from keras_transformer.data import Shard
from keras_transformer.layers import DecoderLayer, EncoderLayer
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.devices.replica import as_replica


class TorchProcesses(Distribution):
    """Trains with one process per device. `torchrun` starts the processes.

    `all_reduce` sums the gradients once per optimizer step, after accumulation and before clipping.
    `DistributedDataParallel` would average the gradients after every micro-batch.
    """

    def __init__(self) -> None:
        import torch
        from torch import distributed

        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # The other processes wait while the chief validates.
        settings: dict[str, Any] = {"timeout": timedelta(hours=4)}
        if "WORLD_SIZE" not in os.environ:
            settings |= {"rank": 0, "world_size": 1, "store": distributed.HashStore()}
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if on_gpu else "gloo", **settings)
        self._distributed = distributed
        self.rank = distributed.get_rank()
        self.gradient_parts = distributed.get_world_size()
        self.shard = Shard(self.rank, self.rank + 1, self.gradient_parts)

    @contextmanager
    def fitting(self, model: keras.Model) -> Iterator[None]:
        if not model.built:
            raise ValueError(
                "The model must be built, for example with `keras.Input`: later, each process "
                f"would give it other weights. Received: model={model}"
            )
        for variable in [*model.variables, *model.optimizer.variables]:
            self._distributed.broadcast(variable.value.data, src=0)
        changes = {"train_function": None, **self._in_place_of_keras(model)}
        with as_replica(model, self, self._mean, changes):
            yield

    def _in_place_of_keras(self, model: keras.Model) -> dict[str, Any]:
        """Returns attributes of a model that sum its metrics over the processes.

        From 3.16 on, Keras does so itself, even where only the chief evaluates, and wraps models in
        `DistributedDataParallel`. The first two attributes turn that off.
        """
        return {
            "ddp_model": None,
            "_initialize_ddp": lambda: None,
            "get_metrics_result": lambda: self._metrics(model),
        }

    def _metrics(self, model: keras.Model) -> dict[str, Tensor]:
        variables = model.metrics_variables
        sums = self._sum([variable.value for variable in variables])
        whole = [(x, y.to(x.value.dtype)) for x, y in zip(variables, sums, strict=True)]
        results: dict[str, Tensor] = {}
        with keras.StatelessScope(state_mapping=whole):
            for metric in model.metrics:
                result = metric.result()
                results |= result if isinstance(result, dict) else {metric.name: result}
        return results

    def alone(self) -> AbstractContextManager[None]:
        return replaced(self, {"gradient_parts": 1})

    @property
    def scale(self) -> int:
        return self.gradient_parts

    def total(self, number: Tensor) -> Tensor:
        return self._sum([number])[0]

    def assign_seed(self, state: keras.Variable, seed: int) -> None:
        state.assign([(seed + self.rank) % 2**31, 0])

    def _sum(self, tensors: list[Any]) -> list[Any]:
        """Returns the sums of tensors over all processes, with a single `all_reduce`."""
        import torch

        if self.gradient_parts == 1 or any(tensor.is_meta for tensor in tensors):
            return tensors
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._distributed.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]

    def _mean(self, gradients: list[Tensor]) -> list[Tensor]:
        return [gradient / self.gradient_parts for gradient in self._sum(gradients)]

    def of_chief(self, flag: bool) -> bool:
        flags = [flag]
        self._distributed.broadcast_object_list(flags, src=0)
        return flags[0]


class ShardedTorchProcesses(TorchProcesses):
    """Splits the weights and the optimizer state over the processes, with FSDP2."""

    needs_copy = True

    @contextmanager
    def fitting(self, model: keras.Model) -> Iterator[None]:
        from torch.distributed.device_mesh import init_device_mesh

        from keras_transformer._backend.fully_sharded import fully_sharded

        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        kind = keras.ops.zeros(()).device.type
        mesh = init_device_mesh(kind, (self._distributed.get_world_size(),))
        blocks = [x for x in model._flatten_layers() if isinstance(x, EncoderLayer | DecoderLayer)]
        with super().fitting(model), fully_sharded(model, model.optimizer, blocks, mesh):
            yield

    def _mean(self, gradients: list[Tensor]) -> list[Tensor]:
        return gradients  # FSDP has averaged them.

    def local(self, trainer: keras.Model) -> keras.Model | None:
        copy = super().local(trainer)
        if copy is not None:
            vars(copy).update(self._in_place_of_keras(copy))
        return copy

    def read(self, variable: keras.Variable) -> np.ndarray:
        return whole_tensor(variable.value).detach().cpu().numpy()


def all_devices(fully_sharded: bool) -> Distribution:
    """See `Distribution.all_devices`."""
    return ShardedTorchProcesses() if fully_sharded else TorchProcesses()
