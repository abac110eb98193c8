"""Compiles graphs of PyTorch's operations."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import lookup_backend
from torch._inductor import config

# Backend of `torch.compile`. With "aot_eager", each operation runs as without `torch.compile`, and
# all results are bit-identical.
BACKEND = "inductor"

# The first option joins small kernels that do not depend on each other: two thirds of all. Of the
# kernels that Inductor makes with the second option, those for the backward pass of layer
# normalization take four times as long as copies of the same size (on an H100).
OPTIONS = {"combo_kernels": True}
OPTIONS |= (
    {"triton.mix_order_reduction": False} if hasattr(config.triton, "mix_order_reduction") else {}
)


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph for the shapes and dtypes of `inputs`."""
    options = {"config_patches": OPTIONS} if BACKEND == "inductor" else {}
    return lookup_backend(BACKEND)(graph, inputs, **options)
