"""The arithmetic of the benchmarks; what they measure is no test's affair."""

import importlib.util
import itertools
from pathlib import Path

import _training_marian as marian
import architectures
import loss_curves
import numpy as np
import pytest
import scaling
import serving_load
import two_devices
import vocabulary_memory
from _attention_layers import path_length, row as layer_row
from _attention_memory import exponent
from _attention_scores import statistics
from _attention_time import row as time_row
from _common import Worker, table
from _training_engines import Case
from support import tiny_run

from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.serving import ServedTranslation
from keras_transformer.translation.open_run import open_model

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
LENGTHS = [128, 256, 512, 1024]
CASE = Case("any", 2, 14, 2, 11, 29, batch_size=3, source_length=5, target_length=7)
MACHINE = scaling.Machine(
    flops=1e12, utilization=0.5, node_size=4, node_bandwidth=1e9, node_latency=1e-3,
    network_bandwidth=1e8, network_latency=1e-2, memory_bandwidth=1e9,
)  # fmt: skip


def test_table_aligns_numbers_and_leaves_what_is_missing_empty():
    rows = [{"engine": "a", "rate": 1234.5, "to": "bb"}, {"engine": "ccc", "rate": 7, "to": None}]
    assert table(rows, {"rate": ",.1f"}).splitlines() == [
        "engine     rate  to",
        "a       1,234.5  bb",
        "ccc         7.0",
    ]


def test_worker_answers_in_spite_of_what_libraries_print_and_says_why_it_dies(tmp_path):
    program = tmp_path / "worker.py"
    program.write_text("""
from _common import serve

def prepare():
    print("library says hello")
    return {"add": lambda a, b: a + b, "fail": lambda: 1 / 0}

serve(prepare)
""")
    with Worker(program, PYTHONPATH=str(BENCH)) as worker:
        assert [worker.ask("add", 1, 2), worker.ask("add", 3, 4)] == [3, 7]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            worker.ask("fail")


@pytest.mark.slow
def test_architectures_have_the_scores_and_the_speeds_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(architectures, "FEWEST_SENTENCES", 1)
    run = tiny_run.begin(tmp_path)
    (row,) = architectures.compare([run.directory], rounds=1)
    assert (row["architecture"], row["steps"]) == ("transformer", tiny_run.STEPS)
    assert row["parameters"] == open_model(run).count_params()
    assert min(row[name] for name in ("training", "greedy", "beam", "minutes")) > 0
    assert all(0 <= row[name] <= 100 for name in ("greedy_bleu", "beam_bleu"))
    assert list(row["by_length"]) == ["0-5"]


def test_attention_exponents_times_and_paths():
    for power in (0, 1.5, 2):
        assert exponent(LENGTHS, [3 * n**power for n in LENGTHS]) == power
    assert exponent(LENGTHS, [1e6, 256, 512, 1024]) == 1  # of the longer lengths
    rounds = [{"dense": s, "fixed": s / 4} for s in (0.1, 0.4, 0.2)]  # a machine that slows down
    row = time_row("fixed", "jax", {128: rounds, 256: rounds})
    assert (row["ms_128"], row["ratio_256"]) == (50, 0.25)
    assert "ratio_128" not in time_row("fixed", "jax", {128: [{"fixed": 0.1}]})
    reaches = [("self-attention", 500), ("r = 64", 64), ("k = 5", 2), ("recurrent (LSTM)", 9)]
    assert [path_length(name, 1000, x) for name, x in reaches] == [1, 16, 500, 1000]
    row = layer_row("recurrent (LSTM)", {n: n / 1000 for n in LENGTHS}, 512)
    assert (row["ms_256"], row["exponent"], row["sequential"], row["path"]) == (256, 1, 1024, 1024)


def test_attention_weights_are_equal_or_saturated():
    scores = np.array([[1.0, -1.0, 1.0, -1.0]])
    equal = statistics(scores, np.full((1, 4), 0.25))
    assert (equal["variance"], equal["largest_weight"], equal["derivative"]) == (1, 0.25, 0.75)
    saturated = statistics(scores, np.eye(4)[:1])
    assert (saturated["largest_weight"], saturated["entropy"], saturated["derivative"]) == (1, 0, 0)


def test_export_rows_are_medians_ratios_within_rounds_and_shares():
    spec = importlib.util.spec_from_file_location("export_benchmark", BENCH / "export.py")
    export = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(export)
    first, second = export.KERAS, export.Variant("onnx", "int8")
    turns = {
        first: [export.Turn(2.0, 4.0), export.Turn(8.0, 6.0), export.Turn(4.0, 5.0)],
        second: [export.Turn(1.0, 1.0), export.Turn(1.0, 3.0), export.Turn(5.0, 1.0)],
    }
    translations = {first: ["a", "b", "c", "d"], second: ["a", "b", "x", "d"]}
    sizes = {first: 4_000_000, second: 1_234_567}
    keras, int8 = export.report(translations, turns, sizes, bleu=len)
    assert keras["seconds"] == 4 and keras["cpu_seconds"] == 5 and keras["sentences_per_s"] == 1
    assert (keras["ratio"], keras["same"], keras["mb"]) == (1, 1, 4)
    assert (int8["ratio"], int8["cpu_ratio"]) == (2, 4)  # of 2, 8 and 0.8; of 4, 2 and 5
    assert (int8["mb"], int8["same"], int8["bleu"]) == (1.23, 0.75, 4)


def test_loss_curves_differ_from_the_same_backends_trainer():
    losses, curve = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5], loss_curves.Curve
    peer = [loss - 0.25 * (i == 3) + 0.5 * (i == 10) for i, loss in enumerate(losses)]
    found = {
        curve(loss_curves.TRAINER, "torch"): [0.0] * 11,
        curve(loss_curves.TRAINER, "jax"): losses,
        curve(loss_curves.PEERS[0], "jax"): peer,
    }
    own, _, other = loss_curves.report(found)
    assert (own["step_1"], own["step_10"], own["last_loss"]) == (0, 0, 0)
    assert (other["step_1"], other["step_10"], other["last_loss"]) == (0, 0.25, 1.0)
    assert "step_50" not in other


def test_the_slope_is_in_logits_of_the_batch():
    """4,096 tokens' logits of one entry of the vocabulary take 16,384 bytes."""
    sizes = [1000, 2000, 4000]
    megabytes = [100 + 3 * 16_384 * size / 1e6 for size in sizes]
    found = vocabulary_memory.row(vocabulary_memory.Curve("ours", "jax"), sizes, megabytes)
    assert (found["engine"], found["mb_2000"]) == ("ours", megabytes[1])
    assert (found["mb_fixed"], found["logits"]) == (100, 3)


def test_marian_gets_the_case_and_its_log_is_read(tmp_path):
    marian.write_batch(CASE, tmp_path)
    words = (tmp_path / "vocabulary.yml").read_text().splitlines()
    assert len(words) == CASE.vocabulary_size
    assert words[:3] == ["</s>: 0", "<unk>: 1", "w2: 2"]
    for name, length in (("source", 5), ("target", 7)):
        rows = [line.split() for line in (tmp_path / name).read_text().splitlines()]
        assert [len(row) + 1 for row in rows] == [length] * CASE.batch_size
        assert {f"{word}: {word[1:]}" for row in rows for word in row} <= set(words)
    given = dict(itertools.pairwise(marian.arguments_of(CASE, tmp_path, steps=4).split()))
    expected = {"--dim-emb": "14", "--enc-depth": "2", "--transformer-dim-ffn": "11"}
    expected |= {"--after": "4u", "--mini-batch": "3", "--max-length": "8"}
    assert expected.items() <= given.items()
    log = "[2026-01-02 03:04:06] Ep. 1 : Up. 1 : Sen. 256 : Cost 9.55 * 4,096 after 4,096 : "
    assert marian.steps_of(f"[memory] Reserving 9 MB\n{log}Time 2.40s : 17\n") == [(9.55, 2.40)]


def test_gradients_go_round_the_node_and_then_between_nodes():
    # 3 members: 4 messages of 10 bytes at 5 bytes/s, a second each to set out.
    assert scaling.ring_seconds(30, 3, bandwidth=5, latency=1) == 4 * (10 / 5 + 1)
    assert scaling.ring_seconds(30, 1, bandwidth=5, latency=1) == 0
    layout = scaling.Layout(replicas=6, split=2, node_size=4)
    assert (layout.in_node, layout.nodes) == (2, 3)
    within, between = 2 * (3e6 / 2 / 1e9 + 1e-3), 4 * (1.5e6 / 3 / 1e8 + 1e-2)
    found = scaling.gradient_seconds(3e6, MACHINE, layout)
    np.testing.assert_allclose(found, within + between)


@pytest.mark.parametrize("replicas, split", [(1, 4), (8, 1), (6, 2)])
def test_the_simulation_is_the_formula_and_all_wait_for_the_slowest(replicas, split):
    layout = scaling.Layout(replicas, split, MACHINE.node_size)
    compute = np.full((layout.nodes, layout.in_node), 3.0)
    for slowest in (3.0, 5.0):
        compute[-1, -1] = slowest
        found = scaling.simulate(compute, 3e6, 1, MACHINE, layout)
        expected = slowest + scaling.gradient_seconds(3e6, MACHINE, layout)
        np.testing.assert_allclose(found, expected)


def test_messages_that_leave_early_hide_behind_compute():
    # Ready after 2 and 3 s; a half takes less than a second: only the last one is seen.
    layout = scaling.Layout(2, 1, MACHINE.node_size)
    half = scaling.gradient_seconds(4e5, MACHINE, layout)
    found = scaling.simulate(np.full((1, 2), 3.0), 8e5, 2, MACHINE, layout)
    np.testing.assert_allclose(found, 3 + half)


def test_ratios_of_two_devices_are_those_of_turns_beside_each_other():
    taken = {
        "one_thread": [(4, 4), (9, 4)],
        "half_batch": [(2, 2), (2, 2)],
        "two_threads": [(2, 4), (3, 4)],
        "two_devices": [(2, 5), (3, 5)],
    }
    found = two_devices.row("jax", taken)
    assert (found["speedup"], found["of_speedup"]) == (2.5, "2.00 to 3.00")
    assert (found["on_paper"], found["free_cores"], found["to_two_threads"]) == (3.25, 1.6, 1)


def test_parameters_and_sums_of_split_layers_by_hand():
    model = Transformer(29, num_layers=2, d_model=14, num_heads=2, d_ff=11)
    assert scaling.parameters(CASE) == model.count_params()
    source, target = 3 * 5 * 14 * 2, 3 * 7 * 14 * 2
    assert MACHINE.update_seconds(1e9) == 28  # 7 numbers of 4 bytes for each weight, 1e9 bytes/s
    # 21 tokens in slices of 14.
    assert scaling.layer_sums(CASE) == [(11, source), (14, target), (4, 4 * 14)]


@pytest.mark.parametrize(
    ("text", "score", "kind"),
    [
        ("ein Hund", -1.0005, "identical"),
        ("ein Hund", -1.1, "wrong"),
        ("der Hund", -1.00005, "tied"),
        ("Hund", -2.0, "wrong"),
        ("eine Katze", -1.0, "wrong"),
    ],
)
def test_a_servers_answer_must_be_the_models_own_or_tie_with_it(text, score, kind):
    expected = [("ein Hund", -1.0), ("der Hund", -1.00005), ("Hund", -2.0)]
    assert serving_load.outcome(ServedTranslation(text, score), expected) == kind


@pytest.mark.parametrize("kind", ["identical", "failed"])
def test_every_answer_of_every_client_is_counted(monkeypatch, kind):
    asked = []

    class Client:
        def translate(self, sentences):
            asked.extend(sentences)
            if kind == "failed":
                raise UserError("away")
            return [ServedTranslation("ein Hund", -1.0)]

    monkeypatch.setattr(serving_load, "connect", lambda *_, **__: Client())
    server, sentences = serving_load.Server("http://x:1", "x:2"), [("a dog", [("ein Hund", -1.0)])]
    load, seconds = serving_load.put_under_load(server, "rest", sentences, 3, 0.05)
    assert load.outcomes == {kind: len(asked)}
    assert len(load.seconds) == len(asked) > 0 and seconds >= 0.05
    assert load.problems == ["away"] * len(asked) * (kind == "failed")
