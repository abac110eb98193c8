"""What a run is, and how far it is, from its files."""

import json
import shutil
import zipfile
from pathlib import Path

import click
import pytest
from support.locking_process import locked_by_another_process

from keras_transformer import Run
from keras_transformer.cli import main
from keras_transformer.runs import info as module
from keras_transformer.runs.checkpoints import CHECKPOINT_MEMBER
from keras_transformer.runs.info import run_info
from keras_transformer.runs.loading import load_model
from keras_transformer.training import TensorBoardWriter

ROOT = Path(__file__).parents[2]
TRAINED_RUN = ROOT / "tests" / "fixtures" / "trained_run"


@pytest.fixture
def finished(tmp_path):
    """A run that has only recipe, tokenizer and model."""
    return shutil.copytree(TRAINED_RUN, tmp_path / "run")


@pytest.fixture(autouse=True)
def one_backend(monkeypatch):
    monkeypatch.setattr(module, "installed_backends", lambda: ["torch"])


@pytest.fixture
def unfinished(finished):
    """A run with two of its checkpoints, and validations that go further."""
    (finished / "model.keras").unlink()
    for step, losses in ((20, {"20": 1.0}), (40, {"20": 1.0, "40": 2.0})):
        folder = finished / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        shutil.copy(TRAINED_RUN / "model.keras", folder)
        state = {"step": step, "validation_losses": losses}
        state["sha256"] = {"model.keras": f"of step {step}"}
        (folder / "state.json").write_text(json.dumps(state))
    with TensorBoardWriter(finished / "logs") as writer:
        for step, bleu in ((20, 12.5), (40, 25.0)):
            writer.report(step, {"loss": 9.0})
            writer.report(step, {"validation/bleu": bleu, "validation/translations": "a | b"})
    history = [{"step": 0, "backend": "jax"}, {"step": 20, "backend": "torch"}]
    (finished / "history.json").write_text(json.dumps(history))
    return finished


def write_scores(run, *entries):
    common = {"split": "test", "metric": "BLEU"}
    (run / "scores.json").write_text(json.dumps([{**common, **entry} for entry in entries]))


def test_a_finished_run(finished):
    info = run_info(finished)
    assert info["problems"] == []
    assert (info["recipe"], info["source_language"]) == ("quickstart", "en")
    assert info["description"].startswith("Numbers and dates")
    assert (info["model"]["num_layers"], info["model"]["d_model"]) == (2, 24)
    assert info["parameters"] == load_model(finished / "model.keras").count_params()
    assert info["vocabulary"] == {"source": 160, "target": 160, "joint": True}
    state = {"is_finished": True, "steps_done": None, "steps": 60}
    assert info["training"] == {**state, "checkpoints": [], "is_running": False}
    assert info["backend"] is None and info["scores"] == []
    assert info["validation"] == {"last": None, "best": None}
    assert info["next"] == [
        f"keras-transformer translate {finished}",
        f"keras-transformer evaluate {finished}",
        f"keras-transformer export {finished} --format saved_model",
    ]


def test_an_unfinished_run(unfinished):
    info = run_info(unfinished)
    assert info["problems"] == []
    state = {"is_finished": False, "steps_done": 40, "steps": 60}
    assert info["training"] == {**state, "checkpoints": [20, 40], "is_running": False}
    assert info["parameters"] == load_model(TRAINED_RUN / "model.keras").count_params()
    assert info["backend"] == "torch"
    assert info["validation"] == {
        "last": {"step": 40, "loss": 2.0, "bleu": 25.0},
        "best": {"step": 20, "loss": 1.0, "bleu": 12.5},
    }
    json.dumps(info)


def test_the_next_commands_fit_the_state_of_the_run(unfinished, monkeypatch):
    resume = f"keras-transformer train {unfinished} --resume"
    translate = f"keras-transformer translate {unfinished} --checkpoint best"
    assert run_info(unfinished)["next"] == [resume, translate]
    with locked_by_another_process(unfinished):
        info = run_info(unfinished)
    assert info["training"]["is_running"] and info["next"] == [translate]
    monkeypatch.setattr(module, "installed_backends", lambda: ["jax", "torch"])
    assert run_info(unfinished)["next"][0] == f"{resume} --backend torch"
    (unfinished / "model.keras").write_bytes(b"damaged")
    info = run_info(unfinished)
    assert "model.keras is not a complete Keras model file" in info["problems"][0]
    assert not info["training"]["is_finished"] and info["next"][0].startswith(resume)


def test_the_next_commands_exist(unfinished):
    for command in run_info(unfinished)["next"]:
        program, name, *options = command.split()
        found = main.get_command(click.Context(main), name)
        assert program == "keras-transformer"
        found.make_parser(click.Context(found)).parse_args(options)


def test_the_newest_score_of_each_text_metric_and_checkpoint_counts(finished):
    checkpoint = {"checkpoint": "step-00000020"}
    others = {"split": "validation"}, {"split": None, "source": "a", "reference": "b"}
    scores = [{"score": 30}, {"score": 8, **others[0]}, {"score": 1, **checkpoint}]
    write_scores(finished, *scores, {"score": 9, **others[1]}, {"score": 31}, {**scores[2]})
    assert [entry["score"] for entry in run_info(finished)["scores"]] == [31, 8, 1, 9]
    assert not any("evaluate" in command for command in run_info(finished)["next"])
    write_scores(finished, *scores[1:])
    assert f"keras-transformer evaluate {finished}" in run_info(finished)["next"]


def test_scores_of_an_earlier_model_are_marked(unfinished):
    shutil.copy(TRAINED_RUN / "model.keras", unfinished)
    with zipfile.ZipFile(unfinished / "model.keras", "a") as archive:
        archive.writestr(CHECKPOINT_MEMBER, "of step 40")
    recipe = unfinished / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("\n  steps: 60", "\n  steps: 40"))
    digest = Run.open(unfinished).scores.scored_model(None)
    entries = [
        digest,
        {"metric": "chrF2", "checkpoint_sha256": "of another"},
        {"metric": "TER", "checkpoint": "step-00000020", "checkpoint_sha256": "of another"},
    ]
    write_scores(unfinished, *entries)
    assert [x["is_current"] for x in run_info(unfinished)["scores"]] == [True, False, True]
    write_scores(unfinished, *entries[1:])
    assert f"keras-transformer evaluate {unfinished}" in run_info(unfinished)["next"]
    shutil.rmtree(unfinished / "checkpoints")  # as in a run to share
    assert run_info(unfinished)["scores"][0]["is_current"]


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("checkpoints/step-00000040/state.json", "validation"),
        ("model.keras", "parameters"),
        ("tokenizer/tokenizer.json", "vocabulary"),
        ("history.json", "backend"),
        ("scores.json", "scores"),
    ],
)
def test_a_damaged_file_leaves_the_rest_known(unfinished, name, unknown):
    (unfinished / name).write_bytes(b"[1]")
    info = run_info(unfinished)
    assert info[unknown] is None
    assert info["problems"]
    assert info["training"]["checkpoints"] == [20, 40]
    assert info["model"]["d_model"] == 24
    json.dumps(info)
