"""What XLA makes of a training step for an H100, on a machine without a GPU.

JAX compiles the step ahead of time for a described GPU, by its CUDA plugin. On a real GPU, XLA
times the products of cuBLAS and those of Triton. Here, all are those of cuBLAS, as most were in a
profile of `base` on an H100. Nothing is run. As a program: a worker for one case.
"""

import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import _common
import jax
from _training_engines import Case, our_trainer
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies

from keras_transformer._backend import jax_kernels
from keras_transformer.training import sliced_logits_trainer

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 19 }
runtime_version { major: 13 minor: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
NO_TRITON = {"xla_gpu_enable_triton_gemm": False}
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s64": 8, "u64": 8}
# Instructions that run nothing on the GPU.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all"}
FREE |= {"copy-done", "partition-id", "replica-id", "opt-barrier"}
PRODUCT = re.compile(r'custom_call_target="__cu|"kind":"__triton\w*gemm')
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")


def counted(text: str) -> dict[str, Any]:
    """What `gpu_offline.py` tells of a case, counted in XLA's program."""
    found = list(kernels(computations(text), "ENTRY"))
    others = [size for is_product, size in found if not is_product]
    products = len(found) - len(others)
    return {"launches": len(found), "products": products, "traffic_gb": sum(others) / 1e9}


def h100() -> Any:
    """A device of JAX, for which it can compile."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    return topology.devices[0]


def program(case: Case) -> str:
    """XLA's optimized program of a training step."""
    sharding = jax.sharding.SingleDeviceSharding(h100())

    def spec(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    answers = (
        (sliced_logits_trainer, "is_on_cpu", False),
        (jax_kernels, "device_type", "cuda"),
        (fused_attention_stablehlo, "check_cudnn_version", 91900),
        (fused_attention_stablehlo, "check_compute_capability", True),
        (fused_attention_stablehlo, "is_cuda_compute_capability_equal", False),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, return_value=answer))
        trainer, inputs, labels = our_trainer(case, "mixed_bfloat16", True)
        trainer.optimizer.build(trainer.trainable_variables)
        kinds = ("trainable", "non_trainable", "optimizer", "metrics")
        state = trainer._get_jax_state(**{f"{kind}_variables": True for kind in kinds})
        step = jax.jit(trainer.train_step, donate_argnums=0)
        lowered = step.lower(*jax.tree.map(spec, (state, (inputs, labels, None))))
    return lowered.compile(NO_TRITON).as_text()


def computations(text: str) -> dict[str, list[tuple[str, ...]]]:
    """The instructions of each computation: name, shape, kind and the rest of the line."""
    found: dict[str, list[tuple[str, ...]]] = {}
    current: list[tuple[str, ...]] = []
    for line in text.splitlines():
        begin = re.match(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$", line)
        if begin:
            current = found.setdefault("ENTRY" if begin[1] else begin[2], [])
        instruction = INSTRUCTION.match(line)
        if instruction:
            current.append(instruction.groups())
    return found


def kernels(parts: dict[str, Any], name: str) -> Iterator[tuple[bool, int]]:
    """The kernels that a computation starts: whether each is a product or attention, its bytes."""
    sizes = {x: bytes_of(shape) for x, shape, *_ in parts[name]}
    for own, _, kind, rest in parts[name]:
        called = re.search(r"(?:body|to_apply|calls)=%?([\w.-]+)", rest)
        if kind == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
            yield from list(kernels(parts, called[1])) * (int(trips[1]) if trips else 1)
        elif kind in ("call", "async-start"):
            yield from kernels(parts, called[1])
        elif kind not in FREE:
            arguments = dict.fromkeys(re.findall(r"%([\w.-]+)", rest.split("), ")[0]))
            yield (
                bool(PRODUCT.search(rest)),
                sizes[own] + sum(sizes.get(x, 0) for x in arguments),
            )


def bytes_of(shape: str) -> int:
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", shape)
    return sum(
        BYTES.get(dtype, 4) * math.prod(int(x) for x in sizes.split(",") if x)
        for dtype, sizes in arrays
    )


if __name__ == "__main__":
    _common.serve(lambda: {"count": lambda: counted(program(Case(**json.loads(sys.argv[1]))))})
