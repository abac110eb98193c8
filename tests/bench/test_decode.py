"""The arithmetic and the machinery of the benchmark; what it measures is no test's affair."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from support.contract import to_numpy
from support.searching import beam_search

from keras_transformer.models import ARCHITECTURES

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import _decoding_engines as engines  # noqa: E402
import _decoding_file as file_part  # noqa: E402
import decode  # noqa: E402
from _decoding_engines import CASES, Case, Setting  # noqa: E402

CASE = Case(
    "small",
    "small",
    num_layers=2,
    d_model=14,
    num_heads=2,
    d_ff=11,
    vocabulary_size=23,
    source_length=5,
    batch_size=3,
    beam_size=4,
    target_length=7,
)
OURS = Setting("keras_transformer", "jax")
HUB = Setting("keras_hub", "jax", jit_compile=True)
INT8 = Setting("ctranslate2", dtype="int8", threads=1)


def measurement(setting, *seconds, case=CASE, memory=100.0, **further):
    return decode.Measurement(case, setting, list(seconds), memory, **further)


# --- Sizes ---------------------------------------------------------------------------------------


def test_flops_are_those_of_the_models_matrices_and_of_attention():
    model = engines.new_model(CASE)
    memory_projections = {
        id(projection.kernel)
        for layer in model.decoder.layers
        for projection in (
            layer.cross_attention.key_projection,
            layer.cross_attention.value_projection,
        )
    }
    hypotheses = CASE.batch_size * CASE.beam_size
    of_target, of_source = hypotheses * CASE.target_length, CASE.batch_size * CASE.source_length
    multiply_adds = 0
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            reads_source = "encoder_layer" in weight.path or id(weight) in memory_projections
            multiply_adds += int(np.prod(weight.shape)) * (of_source if reads_source else of_target)
    seen = sum(range(1, CASE.target_length + 1))
    queries_and_keys = of_source * CASE.source_length + of_target * CASE.source_length
    queries_and_keys += hypotheses * seen
    multiply_adds += CASE.num_layers * queries_and_keys * 2 * CASE.d_model
    assert CASE.flops == 2 * multiply_adds


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases_are_the_presets(case):
    for size in ("num_layers", "d_model", "num_heads", "d_ff"):
        assert getattr(case, size) == ARCHITECTURES["transformer"].presets[case.model][size]


# --- Engines -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_special_tokens_can_never_win():
    model = engines.new_model(CASE)
    inputs = {"source_ids": engines.source_ids(CASE), "target_ids": np.array([[2, 9, 7]] * 3)}
    logits = to_numpy(model(inputs))
    special = [engines.PAD_ID, engines.BOS_ID, engines.EOS_ID]
    np.testing.assert_allclose(logits[..., special], -CASE.d_model / 4, atol=1e-4)


WIDE = replace(CASE, d_model=48, num_heads=3)  # wide enough for the special tokens to lose


def load(engine, folder, **changes):
    """An engine with the weights of `new_model(WIDE)`, on the backend of the test."""
    engines.SAVE[engine](engines.new_model(WIDE), WIDE, folder)
    setting = Setting(engine, keras.config.backend())
    return engines.LOAD[engine](replace(WIDE, **changes), setting, folder)


def assert_decodes_what_we_decode(engine, folder):
    engines.SAVE[engine](engines.new_model(WIDE), WIDE, folder)
    engines.SAVE["keras_transformer"](engines.new_model(WIDE), WIDE, folder)
    setting = Setting(engine, keras.config.backend())
    for beam_size in (1, 4):
        case = replace(WIDE, beam_size=beam_size)
        theirs, ours = (
            engines.LOAD[name](case, setting, folder).decode(WIDE.target_length)
            for name in (engine, "keras_transformer")
        )
        np.testing.assert_array_equal(theirs, ours)


def test_weight_bytes_are_those_of_the_decoders_matrices():
    model = engines.new_model(CASE)
    kernels = [
        weight
        for layer in model.decoder.layers
        for weight in layer.weights
        if weight.name == "kernel" and not re.search("cross.*(key|value)", weight.path)
    ]
    matrices = [*kernels, model.target_embedding.embeddings]
    assert CASE.weight_bytes == 4 * sum(np.prod(matrix.shape) for matrix in matrices)


@pytest.mark.slow
def test_ctranslate2_decodes_what_we_decode(tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    assert_decodes_what_we_decode("ctranslate2", tmp_path)


@pytest.mark.slow
def test_keras_hub_decodes_what_we_decode(tmp_path):
    assert_decodes_what_we_decode("keras_hub", tmp_path)


@pytest.mark.slow
def test_marian_decodes_what_we_decode(tmp_path):
    pytest.importorskip("transformers", reason="only the benchmark needs transformers")
    assert_decodes_what_we_decode("marian", tmp_path)


@pytest.mark.slow
def test_log_probability_is_that_of_the_search(tmp_path):
    sources = engines.source_ids(WIDE)
    result = beam_search(
        engines.new_model(WIDE), sources, max_length=WIDE.target_length, length_penalty=0.0
    )
    rows = [2, 0]
    found = load("keras_transformer", tmp_path).further_actions["log_probabilities"](
        rows, to_numpy(result.ids)[rows, 0].tolist()
    )
    np.testing.assert_allclose(found, to_numpy(result.log_probabilities)[rows, 0], atol=1e-4)


# --- Rounds and tables ---------------------------------------------------------------------------


class Scorer:
    """A worker that finds the sum of the ids a hypothesis's log-probability."""

    def ask(self, action, rows, targets):
        assert action == "log_probabilities"
        return [float(np.sum(target)) for target in targets]


def test_agreement_counts_ties():
    ours = decode.Decoder(Scorer(), [[4, 5], [6, 7], [8, 9], [10, 11]])
    assert decode.agreement(ours, ours.tokens) == 1
    assert decode.agreement(ours, [[4, 5], [7, 6], [8, 10], [10, 11]]) == 0.75


def test_report_compares_within_a_contest_and_pools_a_peer_of_several():
    on_jax = [
        measurement(
            OURS, 1.0, 1.0, matmul_flops=CASE.flops * 10.0, bytes_per_s=CASE.weight_bytes * 70.0
        ),
        measurement(HUB, 2.0, 2.0, same=1.0),
        measurement(INT8, 4.0, memory=50.0, same=0.5),
    ]
    ours_on_torch = Setting("keras_transformer", "torch")
    on_torch = [measurement(ours_on_torch, 3.0), measurement(INT8, 6.0, memory=60.0)]
    rows = decode.report([on_jax, on_torch])
    assert [(row["engine"], row["backend"], row["ratio_to"], row["ratio"]) for row in rows] == [
        ("keras_transformer", "jax", "keras_hub float32", 2.0),
        ("keras_transformer", "jax", "ctranslate2 int8", 4.0),
        ("keras_transformer", "torch", "ctranslate2 int8", 2.0),
        ("keras_hub", "jax", None, None),
        ("ctranslate2", None, None, None),
    ]
    assert [row["tokens_per_s"] for row in rows] == [21.0, 21.0, 7.0, 10.5, 4.2]
    assert [row["share"] for row in rows] == [0.1, 0.1, 0.033, 0.05, 0.02]
    assert [row["read"] for row in rows] == [0.1, 0.1, 0.033, 0.05, None]
    assert [row["same"] for row in rows] == [1.0, 0.5, None, None, None]
    assert [row["peak_memory_mib"] for row in rows] == [100, 100, 100, 100, 60]


# --- A file --------------------------------------------------------------------------------------


def test_differing_translations_are_ties_or_better_on_one_side():
    ours = [("a", [4]), ("b", [5]), ("c", [6]), ("d", [7]), ("e", [8])]
    theirs = [("a", [4]), ("B", [5]), ("C", [5]), ("D", [9]), ("e", [9])]
    asked = []

    def log_probabilities(rows, ids):
        asked.append(rows)
        return [float(np.sum(each)) for each in ids]

    assert file_part.compare(ours, theirs, log_probabilities) == {
        "sentences": 5,
        "identical": 2,  # what counts is the text
        "tied": 1,
        "ours_better": 1,
        "theirs_better": 1,
    }
    assert asked == [[1, 2, 3]] * 2
