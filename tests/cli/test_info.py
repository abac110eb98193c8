"""`keras-transformer info`."""

import json
import shutil

import pytest
from support.command_line import succeeds

from keras_transformer import Run
from keras_transformer.translation.open_run import open_model


def test_a_trained_run(run):
    lines = succeeds("info", run).splitlines()
    rows = [line.split(maxsplit=1) for line in lines]
    shown = {label: text for label, text in rows if label not in ("last", "best", "next")}
    assert shown["run"] == str(run)
    assert shown["recipe"] == "digits (en to de)"
    assert "num_layers 1, d_model 8, num_heads 2, d_ff 11" in shown["model"]
    assert shown["parameters"] == f"{open_model(Run.open(run)).count_params():,}"
    assert shown["vocabulary"] == "60 pieces for both languages"
    assert shown["training"].startswith(
        "finished; 4 of 4 steps done; checkpoints of the steps 2, 4"
    )
    assert any(line.startswith("last validation  step 4: loss ") for line in lines)
    assert any("bleu" in line for line in lines if line.startswith("best validation  step "))
    assert lines[-3].endswith(f"keras-transformer translate {run}")


def test_json_has_null_for_what_is_not_a_number(run):
    state = run / "checkpoints" / "step-00000004" / "state.json"
    content = json.loads(state.read_text())
    content["validation_losses"]["4"] = float("nan")
    state.write_text(json.dumps(content))
    shutil.rmtree(run / "logs")
    shown = succeeds("info", run, "--json")
    last = json.loads(shown, parse_constant=pytest.fail)["validation"]["last"]
    assert last == {"step": 4, "loss": None}


def test_scores_and_problems_are_shown(run):
    score = {"split": "test", "metric": "BLEU", "score": 12.5, "signature": "nrefs:1"}
    (run / "scores.json").write_text(json.dumps([{**score, "checkpoint": "step-00000004"}]))
    assert "step-00000004, test: BLEU 12.50  nrefs:1" in succeeds("info", run)
    (run / "scores.json").write_text("[")
    assert "scores.json cannot be read" in succeeds("info", run)


def test_a_score_of_an_earlier_model_says_so(run):
    score = {"split": "test", "metric": "BLEU", "score": 12.5, "checkpoint_sha256": "of another"}
    (run / "scores.json").write_text(json.dumps([score]))
    assert "earlier model, test: BLEU 12.50" in succeeds("info", run)


def test_text_of_a_stranger_does_not_control_the_terminal(run):
    recipe = (run / "recipe.yaml").read_text()
    hostile = recipe.replace("description: ''", r'description: "a\e[2Jb\nc"')
    assert hostile != recipe
    (run / "recipe.yaml").write_text(hostile)
    lines = succeeds("info", run).splitlines()
    assert any(line.endswith("  a [2Jb c") for line in lines)
