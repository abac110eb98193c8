"""`keras-transformer evaluate`."""

import hashlib
import json
import shutil

import pytest
from support.command_line import fails, succeeds

from keras_transformer.decoding.translator import Translator


def test_scores_are_shown_and_appended_to_the_run(run):
    shown = succeeds("evaluate", run, "--split", "validation", "--length-penalty", 0)
    bleu, chrf = json.loads((run / "scores.json").read_text())
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["split"] == "validation"
    assert (bleu["beam_size"], bleu["length_penalty"]) == (2, 0)
    assert f"BLEU\t{bleu['score']:.2f}\t{bleu['signature']}" in shown


def test_damaged_scores_are_refused_before_translation(run, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("translated"))
    (run / "scores.json").write_text("[{")
    assert "scores.json cannot be read" in fails("evaluate", run)
    assert (run / "scores.json").read_text() == "[{"


def test_text_that_has_moved_is_told_without_an_option_of_another_command(run):
    recipe = (run / "recipe.yaml").read_text()
    lines = [line for line in recipe.splitlines() if "directory:" not in line]
    (run / "recipe.yaml").write_text("\n".join(lines))
    message = fails("evaluate", run)
    assert f"in {run / 'recipe.yaml'} (for" in message


def test_empty_text_is_refused(finished, run, tmp_path):
    data = shutil.copytree(finished / "data", tmp_path / "data")
    for name in ("val.en", "val.de"):
        (data / name).write_text("")
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace(str(finished / "data"), str(data)))
    assert fails("evaluate", run) == f"the test text of {run} is empty"


@pytest.mark.parametrize("option", ["max_length", "min_length"])
def test_a_length_above_that_of_the_model_is_refused(run, option):
    expected = (
        f"`options.{option}` must be at most the model's max_length, 24. Received: {option}=25"
    )
    assert fails("evaluate", run, f"--{option.replace('_', '-')}", 25) == expected
    assert not (run / "scores.json").exists()


def test_the_engine_ctranslate2_evaluates_too(run):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    assert "BLEU\t" in succeeds("evaluate", run, "--engine", "ctranslate2")
    assert "min_length=1" in fails("evaluate", run, "--engine", "ctranslate2", "--min-length", 2)


def test_batch_tokens_limit_the_batches_of_the_search(run, monkeypatch):
    seen = []
    translate = Translator.translate

    def record(translator, *arguments, **named):
        seen.append(translator.tokens_per_batch)
        return translate(translator, *arguments, **named)

    monkeypatch.setattr(Translator, "translate", record)
    shown = succeeds("evaluate", run, "--beam-size", 1)
    assert succeeds("evaluate", run, "--beam-size", 1, "--batch-tokens", 16) == shown
    assert seen == [2048, 16]


def test_the_checkpoint_is_recorded(run):
    checkpoint = run / "checkpoints" / "step-00000002" / "model.keras"
    (run / "model.keras").unlink()
    assert "BLEU\t" in succeeds("evaluate", run, "--checkpoint", 2)
    for entry in json.loads((run / "scores.json").read_text()):
        assert entry["checkpoint"] == "step-00000002"
        assert entry["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert "of the checkpoints: 2, 4" in fails("evaluate", run, "--checkpoint", 3)


def test_the_shortlist_is_recorded(run):
    for options in ((), ("--shortlist",)):
        assert "BLEU\t" in succeeds("evaluate", run, *options)
    scores = json.loads((run / "scores.json").read_text())
    assert [entry.get("shortlist", False) for entry in scores] == [False] * 2 + [True] * 2
