"""What Inductor makes of a training or search step for an H100, on a machine without a GPU.

Autograd needs a real device, so the step is traced on the CPU, with fused attention and the other
kernels of GPUs. Then both of its graphs are moved to a GPU that PyTorch is told of, and Inductor
writes the code for it. Nothing is run. As a program: a worker for one case.
"""

import contextlib
import json
import re
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import _common
import keras
import torch
from _decoding_engines import Case as SearchCase, new_model, source_ids
from _training_engines import Case, our_trainer
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._triton import has_triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from keras_transformer import SearchOptions, search
from keras_transformer._backend import compile_function, compile_graph, operations
from keras_transformer._backend.cuda_graphs import GraphedLoops
from keras_transformer.training import sliced_logits_trainer
from keras_transformer.training.step import compiled_step

GPU = torch.device("cuda:0")
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "total_memory": 80 * 2**30,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "L2_cache_size": 50 * 2**20,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "gcnArchName": "",
    "clock_rate": 1980000,
    "memory_clock_rate": 2619000,
    "memory_bus_width": 5120,
}


class Stop(BaseException):
    """Ends a compilation that has told what was asked. Dynamo replaces exceptions of its kind."""


def counts(case: Case) -> dict[str, Any]:
    """What `gpu_offline.py` tells of a case."""
    forward, backward = step_graphs(case)
    saved = [
        node.meta["val"]
        for node in forward.graph.find_nodes(op="output")[0].args[0]
        if isinstance(node, torch.fx.Node) and node.op != "placeholder"
    ]
    with h100():
        parts = [program(graph, graph is backward) for graph in (forward, backward)]
    figures = {name: sum(part[name] for part in parts) for name in parts[0]}
    saved_bytes = sum(x.numel() * x.element_size() for x in saved if torch.is_tensor(x))
    return {**figures, "saved_gb": saved_bytes / 1e9}


def step_graphs(case: Case) -> tuple[Any, Any]:
    """The graphs of a training step's forward and backward pass, as `CompiledStep` makes them."""
    graphs = []

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        joint_graph_passes(joint)
        graphs.extend(
            min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)
        )
        raise Stop

    traced = aot_autograd(
        fw_compiler=lambda graph, inputs: graph,
        partition_fn=partition,
        decompositions=select_decomp_table,
    )
    torch._dynamo.register_backend(traced, name="offline")
    trainer, inputs, labels = our_trainer(case, "mixed_bfloat16", False)
    patches = (
        mock.patch.object(sliced_logits_trainer, "is_on_cpu", lambda: False),
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", attention),
    )
    with as_on_gpu(*patches), contextlib.suppress(Stop):
        compiled_step.CompiledStep(trainer)((inputs, labels))
    return tuple(graphs)


def search_counts(case: SearchCase) -> dict[str, Any]:
    """What `gpu_offline.py` tells of a step of a search, as `GraphedLoops` compiles it."""
    graphs = []

    def keep(graph: Any, inputs: Any) -> None:
        graphs.append(graph)
        raise Stop

    traced = aot_autograd(fw_compiler=keep, decompositions=select_decomp_table)
    torch._dynamo.register_backend(traced, name="offline")
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = new_model(case)
    model.jit_compile = True
    options = {"max_length": case.target_length, "options": SearchOptions(beam_size=case.beam_size)}
    patches = (
        mock.patch.object(compile_function, "is_on_cuda", lambda: True),
        mock.patch.object(torch.cuda, "graph_pool_handle"),
        mock.patch.object(GraphedLoops, "_graph", lambda _, step, leaves: step(*leaves)),
    )
    with as_on_gpu(*patches), contextlib.suppress(Stop):
        compile_function.compile_function(search, model)(source_ids(case), **options)
    with h100():
        return program(graphs[0], False)


@contextlib.contextmanager
def as_on_gpu(*patches: Any) -> Iterator[None]:
    """Lets a step on the CPU use the operations of a step on a GPU, and the compiler "offline"."""
    patches += (
        mock.patch.object(compile_graph, "BACKEND", "offline"),
        mock.patch.object(operations, "FUSED_DEVICES", ("cpu",)),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def attention(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, **options: Any) -> Any:
    """Calls the kernel that PyTorch has on GPUs for attention with a mask."""
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, True, 0.0, is_causal, scale=options["scale"])[0]


# --- The GPU -------------------------------------------------------------------------------------


@contextlib.contextmanager
def h100() -> Iterator[None]:
    """Lets PyTorch and Triton see an H100."""
    properties = types.SimpleNamespace(**H100)
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "is_initialized": True,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "current_stream": None,
        "synchronize": None,
        "device": contextlib.nullcontext(),
    }
    target = types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            answer_always = mock.Mock(return_value=answer)
            for owner in (torch.cuda, CudaInterface):
                stack.enter_context(mock.patch.object(owner, name, answer_always, create=True))
        stack.enter_context(mock.patch.object(driver, "_active", target))
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
        has_triton.cache_clear()
        yield


def program(graph: Any, is_backward: bool) -> dict[str, Any]:
    """Counts what Inductor's program for a graph launches and moves."""
    graph, inputs = moved(graph)
    found: dict[str, Any] = {}

    def look(code: str) -> None:
        kernels = re.findall(r"^\s+triton_\w+\.run\(", code, re.MULTILINE)
        calls = re.findall(
            r"^\s+(?:\w+ = )?(?:extern_kernels|torch\.ops\.aten)\.", code, re.MULTILINE
        )
        others = (ExternKernelSchedulerNode, NopKernelSchedulerNode)
        fused = [node for node in V.graph.scheduler.nodes if not isinstance(node, others)]
        traffic = sum(node.get_read_write_buffers_sizes() for node in fused)
        found["launches"] = len(kernels) + len(calls)
        found["products"], found["traffic_gb"] = len(calls), traffic / 1e9
        raise Stop

    context = torch._guards.TracingContext(inputs[0].fake_mode)
    with (
        mock.patch.object(GraphLowering, "save_output_code", look),
        config.patch(
            {"shape_padding": False, "force_disable_caches": True, **compile_graph.OPTIONS}
        ),
        torch._guards.tracing(context),
        contextlib.suppress(Stop),
    ):
        compile_fx.compile_fx_inner(graph, inputs, is_backward=is_backward, graph_id=0)
    return found


def moved(graph: Any) -> tuple[Any, Sequence[Any]]:
    """Moves a graph from the CPU to the GPU. Also returns its inputs, without memory."""
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]

    def on_gpu(x: Any) -> Any:
        return GPU if isinstance(x, torch.device) else x

    for node in list(graph.graph.nodes):
        node.meta = {}
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), on_gpu)
        if node.op == "get_attr":
            with graph.graph.inserting_after(node):
                copy = graph.graph.call_function(torch.ops.aten._to_copy.default, (node,))
                node.replace_all_uses_with(copy)
                copy.args, copy.kwargs = (node,), {"device": GPU}
    graph.recompile()
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=GPU) for x in inputs
        ]
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return graph, inputs


if __name__ == "__main__":
    sizes = json.loads(sys.argv[1])
    count = search_counts if "beam_size" in sizes else counts
    make = SearchCase if "beam_size" in sizes else Case
    _common.serve(lambda: {"count": lambda: count(make(**sizes))})
