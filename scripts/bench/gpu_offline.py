#!/usr/bin/env python
"""What compilers make of a step for an H100, counted on a machine without a GPU.

Compiles the real training step of this package, the paper's `base` and `big` at the sizes of
`gpu.py`, in bfloat16: by Inductor on PyTorch, by XLA on JAX and TensorFlow. On PyTorch also the
step of a search by `base`, compiled as for a model with `jit_compile=True`. Nothing is run, so
nothing is timed.

`launches` are what a GPU starts: kernels, matrix products and calls of attention. On PyTorch, they
are those of the loss and its gradients, without the optimizer, whose kernels are few. On JAX and
TensorFlow, they are those of the whole step. `traffic_gb` is what these kernels read and write
without products and attention; a kernel that reads some rows of a table counts as one that reads
all. `saved_gb` is what the forward pass keeps for the backward pass.

Each backend needs its compiler for GPUs, here in environments of their own:

    pip install torch keras         # PyPI's torch for Linux has CUDA and Triton
    pip install jax[cuda13] keras
    pip install jax[cuda13] keras tensorflow
"""

import argparse
import dataclasses
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

from _common import Parser, Worker, table, write_json
from gpu import CASES, DECODING

EXAMPLES = """examples:
  scripts/bench/gpu_offline.py --json counts.json
  scripts/bench/gpu_offline.py --backends torch --cases base "beam 64x4" --layers 1
"""
XLA = "jax_plugins.xla_cuda13"
COMPILERS = {"torch": ("triton",), "jax": (XLA,), "tensorflow": (XLA, "tensorflow")}
FORMATS = {
    "layers": "d",
    "launches": ",d",
    "products": ",d",
    "traffic_gb": ".1f",
    "saved_gb": ".1f",
    "seconds": ".0f",
}


def count(backend: str, case: Any) -> dict[str, Any]:
    """Counts in a process of its own, because each backend is told that it sees a GPU."""
    begin = time.monotonic()
    program = Path(__file__).with_name(f"_gpu_offline_{backend}.py")
    with Worker(program, json.dumps(dataclasses.asdict(case)), KERAS_BACKEND=backend) as worker:
        counts = worker.ask("count")
    row = {"case": case.name, "layers": case.num_layers, "backend": backend}
    figures = {name: counts.get(name) for name in FORMATS if name not in row}
    return {**row, **figures, "seconds": time.monotonic() - begin}


def has_compiler(backend: str) -> bool:
    """Whether the compiler for GPUs is installed."""
    names = [name for path in COMPILERS[backend] for name in (path.split(".")[0], path)]
    return all(importlib.util.find_spec(name) is not None for name in names)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__, EXAMPLES)
    names = [case.name for case in (*CASES, *DECODING)]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    found = [backend for backend in COMPILERS if has_compiler(backend)]
    help_text = "default: those whose compiler for GPUs is installed"
    parser.add_argument("--backends", nargs="+", choices=COMPILERS, default=found, help=help_text)
    parser.add_argument("--layers", type=int, help="of encoder and decoder; default: 6")
    options = parser.parse()
    if not options.backends:
        parser.error("no compiler for GPUs is installed here, neither triton nor jax[cuda13]")
    return options


def main() -> None:
    options = parse_arguments()
    rows: list[dict[str, Any]] = []
    for case in (x for x in (*CASES, *DECODING) if x.name in options.cases):
        layers = options.layers or case.num_layers
        for backend in options.backends if case in CASES else {"torch"} & {*options.backends}:
            rows.append(count(backend, dataclasses.replace(case, num_layers=layers)))
            if options.json:
                write_json(options.json, rows)
    print(table(rows, FORMATS))


if __name__ == "__main__":
    main()
