"""`keras-transformer evaluate` and `score`."""

import hashlib
import json
import math
import shutil
import sys

import pytest
from support.command_line import fails, invoke, succeeds
from support.fake_comet import fake_comet
from support.few_samples import SAMPLES, draw_few_samples

from keras_transformer.cli.evaluate import as_json, comparison_table, length_table, score_lines
from keras_transformer.evaluation.evaluator import LengthBucket, Score, Significance
from keras_transformer.runs.run import Run
from keras_transformer.translation.translator import Translator


def test_scores_are_shown_and_appended_to_the_run(run):
    shown = succeeds("evaluate", run, "--split", "validation", "--length-penalty", 0)
    bleu, chrf = json.loads((run / "scores.json").read_text())
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["split"] == "validation"
    assert (bleu["beam_size"], bleu["length_penalty"]) == (2, 0)
    assert f"BLEU\t{bleu['score']:.2f}\t{bleu['signature']}" in shown
    assert len((run / "hypotheses" / "validation.txt").read_text().splitlines()) == 10


@pytest.mark.parametrize("option", ["max-length", "min-length"])
def test_a_length_above_that_of_the_model_is_refused(run, option):
    expected = "must be at most the model's max_length, 24. Received: "
    assert expected in fails("evaluate", run, f"--{option}", 25)
    assert not (run / "scores.json").exists()


def test_the_checkpoint_is_recorded(run):
    checkpoint = run / "checkpoints" / "step-00000002" / "model.keras"
    (run / "model.keras").unlink()
    assert "BLEU\t" in succeeds("evaluate", run, "--checkpoint", 2)
    for entry in json.loads((run / "scores.json").read_text()):
        assert entry["checkpoint"] == "step-00000002"
        assert entry["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert "of the checkpoints: 2, 4" in fails("evaluate", run, "--checkpoint", 3)


def test_files_are_evaluated_and_compared_with_a_baseline(run, finished, tmp_path, monkeypatch):
    draw_few_samples(monkeypatch)
    reference = finished / "data" / ".." / "data" / "val.de"
    text = ["--source", finished / "data" / "val.en", "--reference", reference]
    baseline, output, report = (tmp_path / name for name in ("baseline", "out", "report.json"))
    succeeds("evaluate", run, *text, "--output", baseline, "--beam-size", 1)
    tests = ["--significance", "bootstrap", "--significance", "randomization"]
    kept = ["--output", output, "--json", report]
    options = [*text, "--metric", "chrf", "--length-buckets", "--baseline", baseline, *tests, *kept]
    shown = succeeds("evaluate", run, *options)
    found = json.loads(report.read_text())
    (score,), (bootstrap, randomization) = found["scores"], found["comparisons"]
    (bucket,) = found["length_buckets"]
    assert score["metric"] == "chrF2" and bucket["scores"] == {"chrF2": score["score"]}
    assert [bootstrap["samples"], randomization["samples"]] == [*SAMPLES.values()]
    assert f"Paired approximate randomization, 200 samples, seed 12345, against {baseline}" in shown
    assert "words of the source" in shown and not (run / "hypotheses").exists()
    assert len(output.read_text().splitlines()) == len(baseline.read_text().splitlines()) == 10
    entry = json.loads((run / "scores.json").read_text())[-1]
    assert entry["reference"] == str(reference.resolve()) and entry["score"] == score["score"]


def test_a_run_is_the_baseline_of_another(run, tmp_path, monkeypatch):
    draw_few_samples(monkeypatch)
    other = shutil.copytree(run, tmp_path / "other")
    evaluate = f"keras-transformer evaluate {other} --split test"
    told = invoke("evaluate", run, "--baseline", other).stderr.strip()
    assert told.endswith(evaluate)
    assert told.startswith(f"Evaluating the test text {Run.open(run).text.files('test')[0]}: ")
    assert not (run / "scores.json").exists()
    succeeds("evaluate", other)
    shown = succeeds("evaluate", run, "--baseline", other)
    assert f"against {other}:" in shown
    assert shown.count(" 1.0000 ") == 2  # the same model


FILES = {"ref": b"eins zwei drei vier\n", "hyp": b"eins zwei drei\n", "src": b"one two\n"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {**FILES, "two": b"a\nb\n", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)


def test_a_file_of_translations_is_scored(files):
    words = "--hypotheses hyp --reference ref --source src --baseline hyp --length-buckets"
    metrics = "--metric ter --metric bleu --lowercase"
    shown = succeeds("evaluate", *words.split(), *metrics.split())
    assert shown.startswith("TER\t25.00\t") and "case:lc" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give either a RUN or --hypotheses FILE"),
        ("--hypotheses hyp", "--hypotheses needs --reference FILE"),
        (
            "--hypotheses hyp --reference ref --split test --beam-size 2 --output out",
            "--beam-size, --output, --split cannot be used with --hypotheses",
        ),
        ("run --source src", "--source and --reference can only be used together"),
        (
            "run --source src --reference ref --split test",
            "--split cannot be used with --source",
        ),
        ("run --significance bootstrap", "--significance can only be used with --baseline"),
        ("run --metric comet", "--metric comet and --comet-model can only be used together"),
        (
            "--hypotheses hyp --reference ref --metric comet --comet-model a",
            "--metric comet needs --source FILE",
        ),
        (
            "--hypotheses hyp --reference ref --metric chrf --lowercase",
            "--tokenize and --lowercase can only be used with --metric bleu",
        ),
        (
            "--hypotheses two --reference ref",
            "two must have as many lines as the references, in the same order. "
            "Received: 2 and 1 lines",
        ),
        (
            "--hypotheses empty --reference empty",
            "there must be at least one reference. Received: none",
        ),
    ],
)
def test_what_contradicts_or_has_no_effect_is_refused(files, options, message):
    assert fails("evaluate", *options.split()) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--baseline two", "two must have as many lines as the references, in the same order"),
        ("--output .", ". cannot be written: Is a directory"),
        ("--source src --reference ref --output ref", "--output must not be an input file"),
        ("--source src --reference ref --json src", "--json must not be an input file"),
        ("--baseline two --output ./two", "--output must not be an input file"),
        ("--source src --reference two", "src with 1 and two with 2"),
        ("--metric comet --comet-model a", "the metric comet needs the package unbabel-comet, "),
    ],
)
def test_errors_come_before_the_translation(run, files, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "comet", None)
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("translated"))
    assert message in fails("evaluate", run, *options.split())
    assert not (run / "scores.json").exists()


def test_comet_scores_a_file(files, monkeypatch):
    fake_comet(monkeypatch)
    text = ["--hypotheses", "hyp", "--reference", "ref", "--source", "src"]
    shown = succeeds(
        "evaluate", *text, "--metric", "comet", "--comet-model", "Unbabel/wmt22-comet-da"
    )
    assert shown == "COMET\t25.00\tnrefs:1|model:Unbabel/wmt22-comet-da|version:2.2.7\n"


def test_score_gives_a_line_a_pair_and_the_figures_of_all(run, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one two\nthree\n\n")
    target.write_text("eins zwei\ndrei\nnull\n")
    result = invoke("score", run, source, target)
    assert result.exit_code == 0
    scores = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(scores) == 3 and all(float(score) < 0 for score, _ in scores)
    nats, tokens = -sum(float(score) for score, _ in scores), sum(int(n) for _, n in scores)
    figures = succeeds("score", run, source, target, "--summary")
    assert figures in result.stderr
    figures = dict(line.split("\t") for line in figures.splitlines())
    assert (figures["pairs"], figures["tokens"]) == ("3", str(tokens))
    assert math.isclose(float(figures["nats per token"]), nats / tokens, abs_tol=2e-4)
    assert math.isclose(float(figures["perplexity"]), math.exp(nats / tokens), rel_tol=2e-4)


def test_results_are_tables_and_json():
    scores = [Score("BLEU", 41.234, "nrefs:1"), Score("chrF2", 66.0, "nrefs:1")]
    assert score_lines(scores) == "BLEU\t41.23\tnrefs:1\nchrF2\t66.00\tnrefs:1"
    drawn = (1000, "12345", "nrefs:1|bs:1000")
    comparisons = [
        Significance("bootstrap", "BLEU", 40.0, 41.234, 0.01249, *drawn),
        Significance("bootstrap", "chrF2", 66.5, 66.0, 0.5, *drawn),
    ]
    assert comparison_table(comparisons, "runs/a").splitlines() == [
        "Paired bootstrap resampling, 1000 samples, seed 12345, against runs/a:",
        "metric      baseline    score    p-value  signature",
        "BLEU           40.00    41.23     0.0125  nrefs:1|bs:1000",
        "chrF2          66.50    66.00     0.5000  nrefs:1|bs:1000",
    ]
    buckets = [LengthBucket("0-5", 7, {"BLEU": 50.0}), LengthBucket("51+", 1, {"BLEU": 9.999})]
    assert length_table(buckets, "source").splitlines() == [
        "words of the source      sentences    BLEU",
        "0-5                              7   50.00",
        "51+                              1   10.00",
    ]
    content = json.loads(as_json(scores=scores, comparisons=[], length_buckets=buckets))
    assert content["scores"][0] == {"metric": "BLEU", "score": 41.234, "signature": "nrefs:1"}
    assert content["length_buckets"][0]["scores"] == {"BLEU": 50.0}
    assert content["comparisons"] == []
