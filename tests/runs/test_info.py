"""What a run is, and how far it is, from its files."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.locking_process import locked_by_another_process

from keras_transformer import Run
from keras_transformer.cli import main
from keras_transformer.errors import UserError
from keras_transformer.runs.info import run_info
from keras_transformer.training import TensorBoardWriter
from keras_transformer.translation.open_run import open_model

ROOT = Path(__file__).parents[2]
OLD_RUN = ROOT / "tests" / "fixtures" / "trained_run"


@pytest.fixture
def finished(tmp_path):
    """A run that has only recipe, tokenizer and model."""
    return shutil.copytree(OLD_RUN, tmp_path / "run")


@pytest.fixture(autouse=True)
def one_backend(monkeypatch):
    monkeypatch.setattr("keras_transformer.runs.info.installed_backends", lambda: ["torch"])


@pytest.fixture
def unfinished(finished):
    """A run with two of its checkpoints, and validations that go further."""
    (finished / "model.keras").unlink()
    for step, losses in ((20, {"20": 1.0}), (40, {"20": 1.0, "40": 2.0})):
        folder = finished / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        shutil.copy(OLD_RUN / "model.keras", folder)
        state = {"step": step, "parameters": 17, "validation_losses": losses}
        (folder / "state.json").write_text(json.dumps(state))
    with TensorBoardWriter(finished / "logs") as writer:
        for step, bleu in ((20, 12.5), (40, 25.0)):
            writer.report(step, {"loss": 9.0})
            writer.report(step, {"validation/bleu": bleu, "validation/translations": "a | b"})
    history = [{"step": 0, "backend": "jax"}, {"step": 20, "backend": "torch"}]
    (finished / "history.json").write_text(json.dumps(history))
    return finished


def test_a_finished_run(finished):
    info = run_info(finished)
    assert info["problems"] == []
    assert (info["recipe"], info["source_language"]) == ("quickstart", "en")
    assert info["description"].startswith("Numbers and dates")
    assert (info["model"]["num_layers"], info["model"]["d_model"]) == (2, 24)
    assert info["parameters"] == open_model(Run.open(finished)).count_params()
    assert info["vocabulary"] == {"source": 160, "target": 160, "joint": True}
    assert info["training"] == {
        "is_finished": True,
        "steps_done": None,
        "steps": 60,
        "checkpoints": [],
        "is_running": False,
    }
    assert info["backend"] is None and info["scores"] == []
    assert info["validation"] == {"last": None, "best": None}
    assert info["next"] == [
        f"keras-transformer {command}"
        for command in (
            f"translate {finished}",
            f"evaluate {finished}",
            f"export {finished} --format saved_model",
        )
    ]


def test_scores_of_checkpoints_and_of_other_texts_are_scores_of_their_own(finished):
    entries = [
        {"split": "test", "metric": "BLEU", "score": 30.0},
        {"source": "a", "reference": "b", "metric": "BLEU", "score": 8.0},
        {"split": "test", "metric": "BLEU", "score": 1.0, "checkpoint": "step-00000020"},
        {"split": "test", "metric": "BLEU", "score": 31.0},
        {"split": "test", "metric": "BLEU", "score": 2.0, "checkpoint": "step-00000020"},
    ]
    (finished / "scores.json").write_text(json.dumps(entries))
    assert [entry["score"] for entry in run_info(finished)["scores"]] == [31.0, 8.0, 2.0]
    (finished / "scores.json").write_text(json.dumps(entries[2:3]))
    assert f"keras-transformer evaluate {finished}" in run_info(finished)["next"]


def test_scores_of_an_earlier_model_are_marked(unfinished):
    shutil.copy(OLD_RUN / "model.keras", unfinished)
    recipe = unfinished / "recipe.yaml"
    recipe.write_text(re.sub(r"\bsteps: 60", "steps: 40", recipe.read_text()))
    digest = Run.open(unfinished).scores.scored_model(None)
    entries = [
        {"split": "test", "metric": "BLEU", "score": 1.0, **digest},
        {"split": "test", "metric": "chrF2", "score": 2.0, "checkpoint_sha256": "of another"},
        {"split": "test", "metric": "TER", "score": 3.0, **digest, "checkpoint": "step-00000020"},
    ]
    (unfinished / "scores.json").write_text(json.dumps(entries))
    assert [x["is_current"] for x in run_info(unfinished)["scores"]] == [True, False, True]
    (unfinished / "scores.json").write_text(json.dumps(entries[1:]))
    assert f"keras-transformer evaluate {unfinished}" in run_info(unfinished)["next"]
    shutil.rmtree(unfinished / "checkpoints")  # as in a run to share
    assert run_info(unfinished)["scores"][0]["is_current"]


def test_the_best_result_is_that_of_a_checkpoint_that_is_kept(unfinished):
    with TensorBoardWriter(unfinished / "logs") as writer:
        writer.report(60, {"validation/loss": 0.5})
    info = run_info(unfinished)
    assert (info["validation"]["last"]["step"], info["validation"]["best"]["step"]) == (60, 20)


def test_damage_of_any_kind_is_a_problem(unfinished):
    state = unfinished / "checkpoints" / "step-00000040" / "state.json"
    state.write_text(state.read_text().replace("17", "1e999"))
    (unfinished / "logs" / "events.out.tfevents.9").write_bytes(
        (20).to_bytes(8, "little") + bytes(4) + b"validation/" + b"\xff" * 9 + bytes(4)
    )
    info = run_info(unfinished)
    assert len(info["problems"]) == 2 and info["parameters"] is None


def test_a_damaged_state_is_named(unfinished):
    state = unfinished / "checkpoints" / "step-00000040" / "state.json"
    state.write_text("")
    assert all(str(state.parent) in problem for problem in run_info(unfinished)["problems"])


def test_a_missing_tokenizer_is_a_problem(finished):
    shutil.rmtree(finished / "tokenizer")
    info = run_info(finished)
    assert f"{finished / 'tokenizer' / 'tokenizer.json'} is missing" in info["problems"][0]
    assert info["next"] == []


def test_an_unfinished_run(unfinished):
    info = run_info(unfinished)
    assert info["problems"] == []
    assert info["training"] == {
        "is_finished": False,
        "steps_done": 40,
        "steps": 60,
        "checkpoints": [20, 40],
        "is_running": False,
    }
    assert info["parameters"] == 17
    assert info["backend"] == "torch"
    assert info["validation"] == {
        "last": {"step": 40, "loss": 2.0, "bleu": 25.0},
        "best": {"step": 20, "loss": 1.0, "bleu": 12.5},
    }
    assert info["next"][0] == f"keras-transformer train {unfinished} --resume"
    json.dumps(info)


def test_the_backend_of_the_run_is_named_where_several_are_installed(unfinished, monkeypatch):
    monkeypatch.setattr("keras_transformer.runs.info.installed_backends", lambda: ["jax", "torch"])
    command = f"keras-transformer train {unfinished} --resume --backend torch"
    assert run_info(unfinished)["next"][0] == command


def test_a_damaged_model_is_to_be_made_again_from_the_checkpoints(unfinished):
    (unfinished / "model.keras").write_bytes(b"damaged")
    info = run_info(unfinished)
    assert "File is not a zip file" in info["problems"][0]
    assert not info["training"]["is_finished"]
    assert info["next"][0] == f"keras-transformer train {unfinished} --resume"


def test_a_run_in_training_is_not_to_be_resumed(unfinished):
    with locked_by_another_process(unfinished):
        info = run_info(unfinished)
    assert info["training"]["is_running"]
    assert info["next"] == [f"keras-transformer translate {unfinished} --checkpoint best"]


def test_the_export_is_in_a_format_whose_packages_are_installed(finished, monkeypatch):
    needed = {"saved_model": ["tensorflow"], "ctranslate2": [], "onnx": []}
    monkeypatch.setattr("keras_transformer.runs.info.missing_packages", needed.get)
    assert run_info(finished)["next"][-1].endswith(f"export {finished} --format ctranslate2")


def test_an_export_of_a_run_in_saved_models_has_another_folder(finished, monkeypatch):
    shutil.copytree(finished, finished.parent / "saved_models" / "mine")
    monkeypatch.chdir(finished.parent)
    export = run_info("saved_models/mine")["next"][-1]
    assert export.endswith("export saved_models/mine --format saved_model --output exported")


def test_the_next_commands_exist(unfinished):
    for command in run_info(unfinished)["next"]:
        program, name, *options = command.split()
        found = main.get_command(click.Context(main), name)
        assert program == "keras-transformer"
        found.make_parser(click.Context(found)).parse_args(options)


def test_more_steps_after_the_end_make_a_run_unfinished(unfinished):
    model, newest = unfinished / "model.keras", unfinished / "checkpoints" / "step-00000040"
    shutil.copy(OLD_RUN / "model.keras", model)
    assert not run_info(unfinished)["training"]["is_finished"]  # the average of a part
    recipe = unfinished / "recipe.yaml"
    recipe.write_text(re.sub(r"\bsteps: 60", "steps: 40", recipe.read_text()))
    assert run_info(unfinished)["training"]["is_finished"]
    text = re.sub(r"\bsteps: 40", "steps: 60\n  early_stopping_patience: 2", recipe.read_text())
    recipe.write_text(text)
    assert not run_info(unfinished)["training"]["is_finished"]
    recipe.write_text(text.replace("early_stopping_patience: 2", "early_stopping_patience: 1"))
    assert run_info(unfinished)["training"]["is_finished"]  # one loss came after the lowest
    seconds = (newest / "state.json").stat().st_mtime - 10
    os.utime(model, (seconds, seconds))
    assert not run_info(unfinished)["training"]["is_finished"]


def test_the_newest_score_of_each_metric(finished):
    entries = [
        {"split": "test", "metric": "BLEU", "score": 1.0, "signature": "a"},
        {"split": "validation", "metric": "BLEU", "score": 2.0, "signature": "b"},
        {"split": "test", "metric": "BLEU", "score": 3.0, "signature": "c"},
    ]
    (finished / "scores.json").write_text(json.dumps(entries))
    info = run_info(finished)
    assert sorted(entry["score"] for entry in info["scores"]) == [2.0, 3.0]
    assert not any("evaluate" in command for command in info["next"])


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("recipe.yaml", "recipe"),
        ("checkpoints/step-00000040/state.json", "parameters"),
        ("checkpoints/step-00000040/model.keras", "parameters"),
        ("tokenizer/tokenizer.json", "vocabulary"),
        ("history.json", "backend"),
        ("scores.json", "scores"),
    ],
)
@pytest.mark.parametrize("content", [b"[1", b"[1]", b"", b"\xff\0"])
def test_a_damaged_file_leaves_the_rest_known(unfinished, name, unknown, content):
    (unfinished / name).write_bytes(content)
    info = run_info(unfinished)
    assert info[unknown] is None
    assert info["problems"]
    assert info["training"]["checkpoints"] == [20, 40]
    assert info["model"]["d_model"] == 24
    json.dumps(info)


def test_events_of_a_killed_process(unfinished):
    (log,) = (unfinished / "logs").iterdir()
    content = log.read_bytes()
    for cut in (1, 5, 20, len(content) - 5):
        log.write_bytes(content[:-cut])
        assert run_info(unfinished)["validation"]["last"]["loss"] == 2.0
    log.write_bytes(b"\xff" * 100)
    assert "bleu" not in run_info(unfinished)["validation"]["last"]


def test_losses_that_are_no_numbers(unfinished):
    state = unfinished / "checkpoints" / "step-00000040" / "state.json"
    state.write_text('{"step": 40, "parameters": 1, "validation_losses": {"20": NaN, "40": 2.0}}')
    validation = run_info(unfinished)["validation"]
    assert validation["best"]["step"] == 40
    state.write_text('{"step": 40, "parameters": 1, "validation_losses": {"40": NaN}}')
    assert math.isnan(run_info(unfinished)["validation"]["best"]["loss"])


def test_a_folder_without_a_recipe_is_no_run(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        run_info(tmp_path)


def test_neither_keras_nor_numpy_is_imported(unfinished):
    code = (
        "import sys; from keras_transformer.runs.info import run_info; "
        f"run_info({str(unfinished)!r}); "
        "print({'keras', 'numpy', 'h5py', 'tensorflow'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout == "set()\n", found.stderr


def test_without_recipe_and_tokenizer_the_vocabulary_is_unknown(unfinished):
    (unfinished / "recipe.yaml").write_bytes(b"[1")
    shutil.rmtree(unfinished / "tokenizer")
    info = run_info(unfinished)
    assert info["vocabulary"] is None
    assert not any("NoneType" in problem for problem in info["problems"])
