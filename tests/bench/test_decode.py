"""The arithmetic and the machinery of the training and decoding benchmarks."""

import re
from dataclasses import replace

import _contest as contest
import _decoding_engines as engines
import _training_engines as training
import decode
import gpu
import keras
import numpy as np
import pytest
from _engines import Setting

from keras_transformer.models import ARCHITECTURES

SIZES = {"num_layers": 2, "d_model": 14, "num_heads": 2, "d_ff": 11, "vocabulary_size": 23}
SIZES |= {"source_length": 5, "target_length": 7, "batch_size": 3}
CASE = engines.Case("small", **SIZES, beam_size=4)
TRAINING_CASE = training.Case("tiny", **SIZES)
WIDE = replace(CASE, d_model=48, num_heads=3)  # wide enough for the special tokens to lose


@pytest.mark.parametrize(
    "case", [*engines.CASES.values(), *training.CASES.values(), *gpu.CASES], ids=str
)
def test_cases_are_the_presets(case):
    preset = ARCHITECTURES["transformer"].presets[getattr(case, "model", case.name)]
    for size in ("num_layers", "d_model", "num_heads", "d_ff"):
        assert getattr(case, size) == preset[size]


@pytest.mark.parametrize(
    ("flops", "targets", "sources"),
    [(CASE.flops / 2, 3 * 4, 3), (TRAINING_CASE.flops / 6, 3, 3)],
    ids=["decoding", "training"],
)
def test_flops_are_those_of_the_models_matrices_and_of_attention(flops, targets, sources):
    """A training step computes three times a forward pass over whole sentences."""
    model = engines.new_model(CASE)
    of_target, of_source, multiply_adds = targets * 7, sources * 5, 0
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            reads_source = re.search("encoder_layer|cross_attention.*(key|value)", weight.path)
            multiply_adds += int(np.prod(weight.shape)) * (of_source if reads_source else of_target)
    seen = targets * (sum(range(1, 8)) if targets > sources else 7 * 7)
    multiply_adds += 2 * (of_source * 5 + of_target * 5 + seen) * 2 * CASE.d_model
    assert flops == multiply_adds


def load(engine, folder, case=WIDE):
    """An engine with the weights of `new_model(WIDE)`, on the backend of the test."""
    folder.mkdir(exist_ok=True)
    engines.save(engine, engines.new_model(WIDE), WIDE, folder)
    return engines.LOAD[engine](case, Setting(engine, keras.config.backend()), folder)


PACKAGES = {"ctranslate2": "ctranslate2", "keras_hub": "keras_hub", "marian": "transformers"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", PACKAGES)
def test_peers_decode_what_we_decode(engine, tmp_path):
    pytest.importorskip(PACKAGES[engine], reason="only the benchmark needs the peers")
    for beam_size in (1, 4):
        case = replace(WIDE, beam_size=beam_size)
        theirs, ours = (
            load(name, tmp_path / f"{beam_size}", case).decode(WIDE.target_length)
            for name in (engine, "keras_transformer")
        )
        np.testing.assert_array_equal(theirs, ours)


class Scorer:
    """A worker that finds the sum of the ids a hypothesis's log-probability."""

    def ask(self, action, rows, targets):
        assert action == "log_probabilities"
        return [float(np.sum(target)) for target in targets]


def test_agreement_counts_ties():
    ours = contest.Entrant(Scorer(), [[4, 5], [6, 7], [8, 9], [10, 11]])
    assert decode.agreement(ours, ours.first) == 1
    assert decode.agreement(ours, [[4, 5], [7, 6], [8, 10], [10, 11]]) == 0.75


PEAKS = {"matmul_flops": CASE.flops * 10.0, "bytes_per_s": CASE.weight_bytes * 70.0}


def measured(engine, *seconds, case=CASE, further=None, **setting):
    return contest.Measurement(case, Setting(engine, **setting), list(seconds), **(further or {}))


def test_a_report_compares_within_a_contest_and_pools_a_peer_of_several():
    int8 = {"dtype": "int8", "threads": 1}
    on_jax = [
        measured("keras_transformer", 1.0, 1.0, backend="jax", further=PEAKS),
        measured("keras_hub", 2.0, 2.0, backend="jax", jit_compile=True, further={"same": 1.0}),
        measured("ctranslate2", 4.0, **int8, further={"same": 0.5, "peak_memory_mib": 50}),
    ]
    on_torch = [
        measured("keras_transformer", 3.0, backend="torch"),
        measured("ctranslate2", 6.0, **int8, further={"peak_memory_mib": 60}),
    ]
    rows = decode.report([on_jax, on_torch])
    ratios = [("jax", 2.0), ("jax", 4.0), ("torch", 2.0), ("jax", None), (None, None)]
    assert [(row["backend"], row["ratio"]) for row in rows] == ratios
    assert [row["ratio_to"] for row in rows[:2]] == ["keras_hub float32", "ctranslate2 int8"]
    assert [row["tokens_per_s"] for row in rows] == [21.0, 21.0, 7.0, 10.5, 4.2]
    assert [row["share"] for row in rows] == [0.1, 0.1, 0.033, 0.05, 0.02]
    assert [row["read"] for row in rows] == [0.1, 0.1, 0.033, 0.05, None]
    assert [row["same"] for row in rows] == [1.0, 0.5, None, None, None]
    assert [row["peak_memory_mib"] for row in rows] == [0, 0, 0, 0, 60]
