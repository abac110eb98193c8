"""What compilers make of a training step for a GPU: not more than they did."""

import json
import sys
from pathlib import Path

import gpu
import gpu_offline
import keras
import numpy as np
import pytest
from _tensorflow_program import step_of, written

PROGRAM = """
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} exponential(%p)
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[8]{0}) tuple(%s, %f)
}

ENTRY %main (a: bf16[2,4], b: f32[8]) -> f32[8] {
  %a = bf16[2,4]{1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %c = bf16[2,2]{1,0} custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
  %w = (s32[], f32[8]{0}) while(%b), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %r = f32[8]{0} get-tuple-element(%w), index=1
}
"""


def test_kernels_of_loops_count_each_time():
    pytest.importorskip("jax")
    from _gpu_offline_jax import computations, kernels

    found = list(kernels(computations(PROGRAM), "ENTRY"))
    assert found == [(True, 16 + 8), *[(False, 32 + 32)] * 3]


# What `base` may be, in launches and GB, a little above what was counted, and where its row is in
# docs/reference/measurements.md.
LIMITS = {
    ("torch", "base"): (500, 15.9, "| `base` | PyTorch |"),
    ("torch", "beam 64x4"): (150, 0.5, "| step of a search, `base`, 64 sentences, 4 beams |"),
    ("jax", "base"): (1_100, 20.6, "| `base` | JAX |"),
    ("tensorflow", "base"): (1_600, 34.0, "| `base` | TensorFlow |"),
}

IDS = ["torch", "search", "jax", "tensorflow"]


@pytest.mark.once
@pytest.mark.parametrize("most_launches, most_traffic, begin", LIMITS.values(), ids=IDS)
def test_the_page_has_counts_within_the_limits(most_launches, most_traffic, begin):
    page = Path(__file__).parents[2] / "docs" / "reference" / "measurements.md"
    rows = page.read_text(encoding="utf-8").partition("### Without a GPU")[2].splitlines()
    (row,) = (row for row in rows if row.startswith(begin))
    launches, _, traffic = (float(x.replace(",", "")) for x in row.split("|")[-5:-2])
    assert launches <= most_launches and traffic <= most_traffic


@pytest.mark.slow
@pytest.mark.each_backend
def test_jax_takes_tensorflows_steps():
    if keras.config.backend() != "tensorflow":
        return
    policy = keras.config.dtype_policy()
    try:
        step = step_of(written(gpu.SMALL))
        metrics = [np.asarray(step()) for _ in range(3)]
    finally:
        keras.config.set_dtype_policy(policy)
    assert np.isfinite(metrics).all() and metrics[0] != metrics[-1]


@pytest.mark.parametrize("backend, case", LIMITS, ids=IDS)
def test_base_launches_few_kernels(monkeypatch, tmp_path, backend, case):
    if not gpu_offline.has_compiler(backend):
        pytest.skip(f"{gpu_offline.COMPILERS[backend][0]} is not installed")
    file = tmp_path / "counts.json"
    options = ["--cases", case, "--backends", backend, "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["gpu_offline.py", *options])
    gpu_offline.main()
    (row,) = json.loads(file.read_text())
    launches, traffic, _ = LIMITS[backend, case]
    assert row["launches"] <= launches and row["traffic_gb"] <= traffic, row
