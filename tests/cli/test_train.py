"""`keras-transformer train`."""

import signal

import keras
import pytest
from support.command_line import fails, invoke, succeeds
from support.locking_process import locked_by_another_process

from keras_transformer.cli import train as command
from keras_transformer.runs.run import Run
from keras_transformer.training.distribution import Distribution
from keras_transformer.training.validation import TranslationValidation


@pytest.fixture
def train(recipe, data, tmp_path):
    return ("train", recipe, "--data-dir", data, "--run", tmp_path / "run")


def test_a_run_holds_all_that_the_design_names(finished):
    names = {path.name for path in (finished / "run").iterdir()}
    visible = {"recipe.yaml", "tokenizer", "store", "checkpoints", "model.keras", "logs"}
    assert names == {*visible, "history.json", "fingerprints.json", ".lock", ".write.lock"}
    steps = [path.name for path in sorted((finished / "run" / "checkpoints").iterdir())]
    assert steps == ["step-00000002", "step-00000004"]


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
        f"continue it (keras-transformer train {run} --resume), remove it, or choose another folder"
    )
    changed = fails(*train, "--resume", "--set", "seed=5")
    assert "differ in seed (1 and 5)" in changed
    (run / "model.keras").unlink()
    following = [
        f"next: keras-transformer {name} {run}" for name in ("translate", "evaluate", "info")
    ]
    assert succeeds(*train, "--resume").splitlines()[-3:] == following
    assert (run / "model.keras").exists()


@pytest.mark.slow
def test_a_run_resumes_by_its_folder_alone_and_with_more_steps(run, monkeypatch):
    shown = succeeds("train", run, "--resume", "--set", "training.steps=5")
    assert "changed from step 4 on: training.steps was 4 and is now 5" in shown
    opened = Run.open(run)
    assert opened.checkpoints()[-1].name == "step-00000005"
    assert [entry["step"] for entry in opened.history()] == [0, 4]
    monkeypatch.chdir(run.parent)
    finished = "the run run is finished, so run/model.keras is not changed"
    shown = succeeds("train", "run", "--resume", "--run", run)
    assert finished in shown and "resume it with a larger training.steps\n" in shown


def test_a_run_folder_in_place_of_a_recipe_needs_resume_and_no_other_run(run, tmp_path):
    for options in ((), ("--run", tmp_path / "other")):
        message = fails("train", run, *options)
        assert f"{run} is a run folder. To continue this run: keras-transformer train" in message
        assert f"train {run} --resume. " in message
        assert f"train {run / 'recipe.yaml'} --run NEW_FOLDER" in message
    message = fails("train", run, "--resume", "--run", tmp_path / "other")
    assert message == f"--run must be {run}, the run to continue, or be omitted"
    assert not (tmp_path / "other").exists()


def test_resume_of_nothing_is_refused(recipe, data, tmp_path):
    message = fails("train", recipe, "--data-dir", data, "--run", tmp_path / "new", "--resume")
    assert message == f"{tmp_path / 'new'} holds no run to continue. To start one, omit --resume"


def test_interrupted_training_says_how_to_go_on(recipe, data, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train", interrupt)
    monkeypatch.setattr("keras_transformer.cli.train.installed_backends", lambda: ["jax", "torch"])
    folder = tmp_path / "a run"
    result = invoke("train", recipe, "--data-dir", data, "--run", folder, "--set", "seed=3")
    assert result.exit_code == 130
    assert "Stopped; there is no checkpoint yet. Continue with: " in result.stderr
    backend = f"--backend {keras.config.backend()}"
    assert result.stderr.endswith(f"train '{folder}' --resume {backend}\n")

    def terminate(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(command, "train", terminate)
    again = invoke("train", folder, "--resume", "--set", "training.steps=9")
    assert again.exit_code == 128 + signal.SIGTERM
    assert again.stderr.endswith(f"train '{folder}' --resume --set training.steps=9 {backend}\n")
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
    monkeypatch.setattr(command, "train", train_and_send)
    monkeypatch.setattr(command, "start", lambda _: Distribution())
    result = invoke(*train, "--set", f"training.distribution={distribution}")
    assert (result.exit_code, len(sent)) == (128 + sent[-1], signals)


@pytest.mark.parametrize(
    "setting",
    [
        "model.activation=reluu",
        "training.tokens_per_batch=1",
        "tokenizer.vocabulary_size=50000",
        "training.initial_run=nowhere",
    ],
)
def test_a_failed_start_does_not_block_the_corrected_command(train, tmp_path, setting):
    fails(*train, "--set", setting)
    assert not (tmp_path / "run").exists()


def test_a_start_that_diverges_fails_and_leaves_nothing(train, tmp_path):
    message = fails(*train, "--set", "training.r_drop=1.0e+300")
    assert message.startswith("training has diverged: ")
    assert not (tmp_path / "run").exists()


def test_a_run_in_use_is_refused_and_left_alone(finished, run):
    train = ("train", finished / "digits.yaml", "--data-dir", finished / "data", "--run", run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with locked_by_another_process(run):
        assert f"another process is training in {run}" in fails(*train, "--resume")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
