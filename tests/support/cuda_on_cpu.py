"""A stand-in for `torch.cuda`, which records and replays operations on a CPU."""

import contextlib
from types import SimpleNamespace

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

# On a GPU, Python waits for these two: it reads a number, or copies numbers to the GPU.
WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.lift_fresh.default}


def cuda_on_cpu():
    """Returns the part of `torch.cuda` that CUDA graphs of steps and loops use."""
    return SimpleNamespace(
        CUDAGraph=CUDAGraph,
        Stream=Stream,
        current_stream=Stream,
        stream=contextlib.nullcontext,
        graph=lambda graph, *_, **options: Records(graph),
        graph_pool_handle=object,
    )


class Stream:
    def wait_stream(self, other):
        pass


class CUDAGraph:
    """A list of operations, with the tensors that they read and those that they made."""

    def __init__(self):
        self.operations = []
        self.replays = 0

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        for function, args, kwargs, results in self.operations:
            for old, new in zip(results, tensors(function(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class Records(TorchDispatchMode):
    """Runs operations to record them, and in the end restores the tensors that they changed."""

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.changed = []

    def __exit__(self, *error):
        super().__exit__(*error)
        for tensor, before in reversed(self.changed):
            tensor.copy_(before)
        if any(error):
            raise RuntimeError("operation failed due to a previous error during capture")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        written = [x for x, y in zip(args, function._schema.arguments, strict=False) if y.is_write]
        self.changed += [(x, x.clone()) for x in tensors(written)]
        results = function(*args, **(kwargs or {}))
        args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda x: x.data, (args, kwargs or {}))
        self.graph.operations.append((function, args, kwargs, tensors(results)))
        return results


def tensors(results):
    found = _pytree.tree_leaves(results)
    return [x.data for x in found if isinstance(x, torch.Tensor)]
