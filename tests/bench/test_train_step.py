"""The arithmetic and the machinery of the benchmark; what it measures is no test's affair."""

import sys
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.models import ARCHITECTURES, Transformer

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import train_step  # noqa: E402
from _common import Worker, table  # noqa: E402
from _training_engines import CASES, Case, Setting  # noqa: E402

CASE = Case(
    "tiny",
    num_layers=2,
    d_model=14,
    num_heads=2,
    d_ff=11,
    vocabulary_size=23,
    batch_size=3,
    source_length=5,
    target_length=7,
)
OURS = Setting("keras_transformer", "jax", jit_compile=True)
HUB = Setting("keras_hub", "jax", jit_compile=True)
TORCH = Setting("torch.nn.Transformer", "torch")


def measurement(setting, *seconds, case=CASE, matmul_flops=1.0):
    return train_step.Measurement(case, setting, list(seconds), matmul_flops)


def test_flops_are_those_of_the_models_matrices_and_of_attention():
    model = Transformer(
        CASE.vocabulary_size,
        num_layers=CASE.num_layers,
        d_model=CASE.d_model,
        num_heads=CASE.num_heads,
        d_ff=CASE.d_ff,
    )
    cross_attentions = [layer.cross_attention for layer in model.decoder.layers]
    reading_memory = {
        id(projection.kernel)
        for attention in cross_attentions
        for projection in (attention.key_projection, attention.value_projection)
    }
    source, target = CASE.source_length, CASE.target_length
    multiply_adds = 0
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            of_source = "encoder_layer" in weight.path or id(weight) in reading_memory
            multiply_adds += int(np.prod(weight.shape)) * (source if of_source else target)
    queries_and_keys = source * source + target * target + target * source
    multiply_adds += CASE.num_layers * queries_and_keys * 2 * CASE.d_model
    assert CASE.flops == 6 * CASE.batch_size * multiply_adds


@pytest.mark.parametrize("case", CASES.values())
def test_cases_are_the_presets(case):
    for size in ("num_layers", "d_model", "num_heads", "d_ff"):
        assert getattr(case, size) == ARCHITECTURES["transformer"].presets[case.name][size]


def test_report_compares_within_a_contest_and_pools_a_peer_of_several():
    on_jax = [
        measurement(OURS, 1.0, 1.0),
        measurement(HUB, 2.0, 2.0),
        measurement(TORCH, 4.0, matmul_flops=CASE.flops * 10.0),
    ]
    ours_on_torch = Setting("keras_transformer", "torch")
    on_torch = [measurement(ours_on_torch, 3.0), measurement(TORCH, 6.0)]
    rows = train_step.report([on_jax, on_torch], CASE.flops * 10.0)
    assert [(row["engine"], row["backend"], row["ratio_to"], row["ratio"]) for row in rows] == [
        ("keras_transformer", "jax", "keras_hub float32", 2.0),
        ("keras_transformer", "jax", "torch.nn.Transformer float32", 4.0),
        ("keras_transformer", "torch", "torch.nn.Transformer float32", 2.0),
        ("keras_hub", "jax", None, None),
        ("torch.nn.Transformer", "torch", None, None),
    ]
    assert [row["tokens_per_s"] for row in rows] == [21.0, 21.0, 7.0, 10.5, 4.2]
    assert [row["share"] for row in rows] == [0.1, 0.1, 0.033, 0.05, 0.02]


def test_table_aligns_numbers_and_leaves_what_is_missing_empty():
    rows = [{"engine": "a", "rate": 1234.5, "to": "bb"}, {"engine": "ccc", "rate": 7, "to": None}]
    assert table(rows, {"rate": ",.1f"}).splitlines() == [
        "engine     rate  to",
        "a       1,234.5  bb",
        "ccc         7.0",
    ]


WORKER = """
from _common import serve

def prepare():
    print("library says hello")
    return {"add": lambda a, b: a + b, "fail": lambda: 1 / 0}

serve(prepare)
"""


@pytest.fixture
def worker(tmp_path):
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    bench = str(Path(__file__).parents[2] / "scripts" / "bench")
    with Worker(program, PYTHONPATH=bench) as worker:
        yield worker


def test_worker_answers_in_spite_of_what_libraries_print(worker):
    assert [worker.ask("add", 1, 2), worker.ask("add", 3, 4)] == [3, 7]


def test_worker_that_dies_says_why(worker):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        worker.ask("fail")
