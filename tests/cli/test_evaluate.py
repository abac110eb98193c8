"""`keras-transformer evaluate` and `score`."""

import hashlib
import json
import math
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.command_line import fails, invoke, succeeds
from support.fake_comet import fake_comet
from support.few_samples import SAMPLES, draw_few_samples

from keras_transformer.translation.translator import Translator


def test_scores_are_shown_and_appended_to_the_run(run):
    shown = succeeds("evaluate", run, "--split", "validation", "--length-penalty", 0)
    bleu, chrf = json.loads((run / "scores.json").read_text())
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["split"] == "validation"
    assert (bleu["beam_size"], bleu["length_penalty"]) == (2, 0)
    assert datetime.fromisoformat(bleu["time"]) <= datetime.now(UTC)
    assert f"BLEU\t{bleu['score']:.2f}\t{bleu['signature']}" in shown
    assert len((run / "hypotheses" / "validation.txt").read_text().splitlines()) == 10


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
    text = ["--files", finished / "data" / "val.en", reference]
    baseline, output, report = (tmp_path / name for name in ("baseline", "out", "report.json"))
    succeeds("evaluate", run, *text, "--output", baseline, "--beam-size", 1)
    kept = ["--output", output, "--json", report]
    shown = succeeds("evaluate", run, *text, "--metric", "chrf", "--length-buckets", *kept)
    found = json.loads(report.read_text())
    assert shown.splitlines()[-1].split() == ["0-5", "10", f"{found['scores'][0]['score']:.2f}"]
    (score,), (bucket,) = found["scores"], found["length_buckets"]
    assert score["metric"] == "chrF2" and bucket["scores"] == {"chrF2": score["score"]}
    assert score == json.loads((run / "scores.json").read_text())[-1]
    assert score["reference"] == str(reference.resolve())
    assert (
        score["checkpoint_sha256"] == hashlib.sha256((run / "model.keras").read_bytes()).hexdigest()
    )
    lines = [x for path in text[1:] for x in path.read_text().splitlines()]
    digest = hashlib.sha256("".join(f"{x}\n" for x in lines).encode()).hexdigest()
    assert (found["run"], found["sentences"], found["text_sha256"]) == (str(run), 10, digest)
    assert (found["search"]["beam_size"], found["search"]["length_penalty"]) == (2, 0.6)
    assert not (run / "hypotheses").exists() and len(output.read_text().splitlines()) == 10

    tests = ["--significance", "bootstrap", "--significance", "randomization"]
    options = ["--metric", "chrf", *tests, "--json", report]
    shown = succeeds("compare", output, baseline, *text, *options)
    found = json.loads(report.read_text())
    bootstrap, randomization = found["comparisons"]
    assert found["scores"][0]["score"] == score["score"] and found["failed"] == []
    assert [bootstrap["samples"], randomization["samples"]] == [*SAMPLES.values()]
    assert f"Paired approximate randomization, 200 samples, seed 12345, against {baseline}" in shown
    assert f" {score['score']:.2f} " in shown


def test_a_run_is_compared_with_another(run, tmp_path, monkeypatch):
    draw_few_samples(monkeypatch)
    other = shutil.copytree(run, tmp_path / "other")
    told = fails("compare", run, other)
    assert told.endswith(f"keras-transformer evaluate {run} --split test")
    for folder in (run, other):
        succeeds("evaluate", folder)
    shown = succeeds("compare", run, other, "--fail-if-worse", 1)
    assert f"against {other}:" in shown
    assert shown.count(" 1.0000 ") == 2  # the same model
    succeeds("compare", run / "hypotheses" / "test.txt", other, "--metric", "ter")
    assert "other.txt is no run folder" in fails("compare", run / "recipe.yaml", "other.txt")


FILES = {"ref": b"eins zwei drei vier\n", "hyp": b"eins zwei drei\n", "src": b"one two\n"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {**FILES, "two": b"a\nb\n"}.items():
        (tmp_path / name).write_bytes(content)


def test_a_file_of_translations_is_scored(files):
    words = "hyp ref --source src --length-buckets --metric ter --metric bleu --lowercase"
    shown = succeeds("evaluate-file", *words.split())
    assert shown.startswith("TER\t25.00\t") and "case:lc" in shown


# "eins zwei drei" lacks one of four words, so TER is 25, and no translation equals its reference.
@pytest.mark.parametrize(
    ("limits", "failed"),
    [
        ("ter=25 exact-match=0", []),
        ("TER=24.9", ["TER is 25.0000, worse than the limit 24.9"]),
        ("ter=30 exact-match=0.1", ["exact match is 0.0000, worse than the limit 0.1"]),
        ("chrF2=101 chrf=1", ["chrF2 is"]),
    ],
)
def test_a_score_that_is_worse_than_its_limit_ends_with_status_3(files, limits, failed):
    options = [word for limit in limits.split() for word in ("--fail-under", limit)]
    result = invoke("evaluate-file", "hyp", "ref", *options, "--json", "report.json")
    assert result.exit_code == (3 if failed else 0), result.output
    told = result.stderr.splitlines()
    found = json.loads(Path("report.json").read_text())
    assert told == [f"Failed: {text}" for text in found["failed"]]
    assert len(told) == len(failed)
    assert all(x.startswith(y) for x, y in zip(found["failed"], failed, strict=True))
    assert found["translations"] == "hyp" and found["sentences"] == 1


def test_a_significant_loss_ends_with_status_3(files, monkeypatch):
    draw_few_samples(monkeypatch)
    right = [f"eins zwei drei vier fünf sechs {x}" for x in "abcdefghijklmnopqrstuvwxyz" * 2]
    for name, lines in {"good": right, "bad": [x[10:] for x in right]}.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    text = ["--files", "good", "good", "--metric", "ter", "--metric", "bleu"]
    worse = invoke("compare", "bad", "good", *text, "--fail-if-worse", 0.05)
    assert worse.exit_code == 3
    assert [x.split()[1] for x in worse.stderr.splitlines() if "Failed" in x] == ["TER", "BLEU"]
    for pair, limit in ((("good", "bad"), [0.05]), (("bad", "good"), []), (("bad", "bad"), [1])):
        options = [word for x in limit for word in ("--fail-if-worse", x)]
        succeeds("compare", *pair, *text, *options)


def test_a_run_below_its_limit_keeps_its_scores(run):
    result = invoke("evaluate", run, "--metric", "bleu", "--fail-under", "ter=0.5")
    assert result.exit_code == 3 and "Failed: TER is " in result.stderr
    found = [entry["metric"] for entry in json.loads((run / "scores.json").read_text())]
    assert found == ["BLEU", "TER"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate run --files src ref --split test", "give either --split or --files"),
        ("evaluate-file hyp ref --fail-under comet=80", "the metric comet needs the source sente"),
        ("evaluate-file two ref", "two must have as many lines as the references, "),
        ("evaluate-file hyp ref --json hyp", "--json must not be an input file"),
        *(
            (f"evaluate-file hyp ref --fail-under {limit}", "is not such as bleu=30. Metrics: bleu")
            for limit in ("bleu", "bleu=", "bleu=x", "bleu=nan", "rouge=3", "=3", "ter=-inf")
        ),
        ("compare hyp ref --fail-if-worse 0", "Invalid value for '--fail-if-worse'"),
    ],
)
def test_what_contradicts_or_is_wrong_is_refused(files, command, message):
    assert message in fails(*command.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--output .", ". cannot be written: Is a directory"),
        ("--files src ref --output ref", "--output must not be an input file"),
        ("--files src ref --json src", "--json must not be an input file"),
        ("--output new --json ./new", "--json must not be an input file or another output"),
        ("--files src two", "src with 1 and two with 2"),
        ("--max-length 25", "must be at most the model's max_length, 24. Received: max_length=25"),
        ("--comet-model a", "the metric comet needs the package unbabel-comet, "),
    ],
)
def test_errors_come_before_the_translation(run, files, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "comet", None)
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("translated"))
    assert message in fails("evaluate", run, *options.split())
    assert not (run / "scores.json").exists()


def test_comet_scores_a_file(files, monkeypatch):
    fake_comet(monkeypatch)
    text = ["hyp", "ref", "--source", "src", "--comet-model", "Unbabel/wmt22-comet-da"]
    *_, shown = succeeds("evaluate-file", *text, "--fail-under", "comet=25").splitlines()
    assert shown == "COMET\t25.00\tnrefs:1|model:Unbabel/wmt22-comet-da|version:2.2.7"
    result = invoke("evaluate-file", *text, "--fail-under", "comet=25.1")
    assert result.exit_code == 3 and "COMET is 25.0000, worse than the limit 25.1" in result.stderr


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
