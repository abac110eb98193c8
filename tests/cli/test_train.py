"""`keras-transformer train`, `budget` and `average`."""

import os
import signal

import keras
import pytest
from support.command_line import fails, invoke, succeeds
from support.locking_process import locked_by_another_process

from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.run import token_budget
from keras_transformer.training.run.validate import TranslationValidation


@pytest.fixture
def train(recipe, data, tmp_path):
    return ("train", recipe, "--data-dir", data, "--run", tmp_path / "run")


def test_a_log_file_names_the_long_work_in_a_few_lines(finished):
    lines = (finished / "stderr").read_text().splitlines()
    progress = [line for line in lines if line.startswith("training: ")]
    assert progress[0].startswith("training: 0/4, ")
    named = [line for line in lines if line not in progress]
    assert named == ["Training the tokenizer."]


def test_training_into_an_existing_run_needs_resume_and_the_same_recipe(finished, run):
    train = ("train", finished / "digits.yaml", "--data-dir", finished / "data", "--run", run)
    message = fails(*train)
    assert message.endswith(
        f"continue the run (keras-transformer train {run} --resume), or choose another folder"
    )
    changed = fails(*train, "--resume", "--set", "seed=5")
    assert "differ in seed (1 and 5)" in changed
    (run / "model.keras").unlink()
    following = [
        f"next: keras-transformer {name} {run}" for name in ("translate", "evaluate", "info")
    ]
    assert succeeds(*train, "--resume").splitlines()[-3:] == following
    assert (run / "model.keras").exists()


def test_a_run_folder_in_place_of_a_recipe_needs_resume_and_no_other_run(run, tmp_path):
    for options in ((), ("--run", tmp_path / "other")):
        message = fails("train", run, *options)
        assert f"{run} is a run folder. To continue this run: keras-transformer train" in message
        assert f"train {run} --resume. " in message
        assert f"train {run / 'recipe.yaml'} --run NEW_FOLDER" in message
    message = fails("train", run, "--resume", "--run", tmp_path / "other")
    assert message == f"--run must be {run}, the run to continue, or be omitted"
    assert not (tmp_path / "other").exists()
    message = fails("train", run / "recipe.yaml", "--run", tmp_path / "new", "--resume")
    assert message.startswith(f"{tmp_path / 'new'} is no run folder: it does not exist")


def test_interrupted_training_says_how_to_go_on(recipe, data, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_transformer.training.train", interrupt)
    monkeypatch.setattr("keras_transformer.cli.train.installed_backends", lambda: ["jax", "torch"])
    folder = tmp_path / "a run"
    result = invoke("train", recipe, "--data-dir", data, "--run", folder, "--set", "seed=3")
    assert result.exit_code == 130
    assert "Stopped; there is no checkpoint yet. Continue with: " in result.stderr
    backend = f"--backend {keras.config.backend()}"
    assert result.stderr.endswith(f"train '{folder}' --resume {backend}\n\n")

    def terminate(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("keras_transformer.training.train", terminate)
    again = invoke("train", folder, "--resume", "--set", "training.steps=9")
    assert again.exit_code == 128 + signal.SIGTERM
    assert again.stderr.endswith(f"train '{folder}' --resume --set training.steps=9 {backend}\n\n")
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_during_validation_waits_for_the_checkpoint(train, tmp_path, monkeypatch):
    def validate(*args):
        signal.raise_signal(signal.SIGTERM)
        return original(*args)

    original = TranslationValidation.__call__
    monkeypatch.setattr(TranslationValidation, "__call__", validate)
    result = invoke(*train)
    assert result.exit_code == 128 + signal.SIGTERM
    assert "Stopping after this step, or after the checkpoint that is due" in result.stderr
    assert "Stopped; the last checkpoint is step-00000002" in result.stderr


@pytest.mark.parametrize(("distribution", "signals"), [("none", 2), ("data_parallel", 1)])
def test_a_second_signal_interrupts_at_once(train, monkeypatch, distribution, signals):
    def train_and_send(run, resume, callbacks, distribution):
        for callback in callbacks:
            callback.on_train_begin()
        for number in (signal.SIGTERM, signal.SIGINT):
            sent.append(number)
            signal.raise_signal(number)

    sent = []
    monkeypatch.setattr("keras_transformer.training.train", train_and_send)
    monkeypatch.setattr("keras_transformer.training.run.train.start", lambda _: Distribution())
    result = invoke(*train, "--set", f"training.distribution={distribution}")
    assert (result.exit_code, len(sent)) == (128 + sent[0], signals)


def test_a_run_in_use_is_refused_and_left_alone(finished, run):
    train = ("train", finished / "digits.yaml", "--data-dir", finished / "data", "--run", run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with locked_by_another_process(run):
        assert f"another process is training in {run}" in fails(*train, "--resume")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_every_try_is_a_line_and_the_last_line_names_the_setting(recipe, data, monkeypatch):
    def find(loaded, limit, report):
        assert loaded.name == "digits"
        assert limit == 512
        report(token_budget.Try(2048, (128, 32, 16)))
        best = token_budget.Try(1024, (64, 32, 16), 300.0, 0.5, 2048.0)
        report(best)
        return best

    monkeypatch.setattr(token_budget, "find_token_budget", find)
    shown = succeeds("budget", recipe, "--memory", 0.5, "--set", f"data.directory={data}")
    header, too_much, fits, largest, last = shown.splitlines()
    assert header.split()[0] == "tokens"
    assert too_much.split() == "2,048 128 x 32 x 16 too much".split()
    assert fits.split() == "1,024 64 x 32 x 16 300 0.50 2,048".split()
    assert largest == "largest that fits into 512 MiB: --set training.tokens_per_batch=1024"
    assert last.startswith("for the recipe's ") and " tokens per optimizer step: --set " in last


def test_killed_at_any_rename_the_run_has_a_model(run, monkeypatch):
    """A kill is simulated by an error in the n-th rename, for every n."""
    before = (run / "model.keras").read_bytes()
    replace, count = os.replace, 0

    def killed(*paths):
        nonlocal count
        count -= 1
        if count < 0:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", killed)
    for renames in range(3):
        count = renames
        invoke("average", run, "--last", 2)
        assert (run / "model.keras").read_bytes() == before
    count = 3
    succeeds("average", run, "--last", 2)
    assert (run / "model.keras").read_bytes() != before
    assert (run / "model.previous.keras").read_bytes() == before
    assert {x.name for x in run.glob("*model*")} == {"model.keras", "model.previous.keras"}
