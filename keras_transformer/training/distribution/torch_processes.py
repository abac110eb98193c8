"""Implements data parallelism on PyTorch."""

import os
from datetime import timedelta
from typing import Any

from keras_transformer.data import Shard
from keras_transformer.training.distribution import Distribution


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
        distributed.init_process_group("nccl" if on_gpu else "gloo", **settings)
        self._distributed = distributed
        self.rank = distributed.get_rank()
        self.gradient_parts = distributed.get_world_size()
        self.shard = Shard(self.rank, self.rank + 1, self.gradient_parts)

    def prepare(self, trainer: Any) -> None:
        for variable in trainer.variables:
            self._distributed.broadcast(variable.value.data, src=0)
        trainer.optimizer.reduce_gradients = self._sum

    def assign_seed(self, state: Any, seed: int) -> None:
        state.assign([(seed + self.rank) % 2**31, 0])

    def metrics(self, trainer: Any) -> dict[str, Any]:
        sums = [variable.value for variable in trainer.metrics_variables]
        for total, value in zip(sums, self._sum(sums), strict=True):
            total.copy_(value)
        return trainer.get_metrics_result()

    def _sum(self, tensors: list[Any]) -> list[Any]:
        """Returns the sums of tensors over all processes, with a single `all_reduce`."""
        import torch

        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._distributed.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]

    def of_chief(self, flag: bool) -> bool:
        flags = [flag]
        self._distributed.broadcast_object_list(flags, src=0)
        return flags[0]
