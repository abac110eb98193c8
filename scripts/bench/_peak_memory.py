"""The memory that a training step needs at its peak, measured in a process of its own."""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import ENVIRONMENT, ROOT

# Large buffers go back to the system as soon as they are free: the peak is what a step needs. With
# oneDNN, TensorFlow would keep them in a pool of its own.
RETURN_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def in_new_process(program: Path, *arguments: str, backend: str) -> dict[str, float]:
    """What a program prints last: what `measure_step` returned there."""
    environment = {**ENVIRONMENT, **RETURN_MEMORY, "KERAS_BACKEND": backend}
    child = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        words = " ".join(arguments)
        raise RuntimeError(f"{program.name} {words} on {backend} died:\n{child.stderr[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1])


def measure_step(step: Callable[[], Any]) -> dict[str, float]:
    """MB that a step adds to what is there before it, and seconds; the first step compiles."""
    step()
    before = _reset_peak()
    step()
    added = _memory("VmHWM") - before
    start = time.perf_counter()
    step()
    return {"mb": round(added / 1e6, 2), "seconds": round(time.perf_counter() - start, 4)}


def _reset_peak() -> int:
    """Bytes that are resident now; the peak counts from here."""
    import ctypes

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")
