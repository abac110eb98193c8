"""Training by a recipe: what it leaves, and that a stop makes no difference."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from support import tiny_job, tiny_run
from support.contract import to_numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.info import run_info
from keras_transformer.runs.model_file import AVERAGE_LAST_MEMBER, load_checkpoint_model
from keras_transformer.runs.run import Run
from keras_transformer.training import average_checkpoints, train
from keras_transformer.training.train_run import check_settings
from keras_transformer.translation.open_run import open_model


def train_in_another_process(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, tiny_run.__file__, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Run, str]:
    """A run that nothing interrupted, and what it printed."""
    directory = tmp_path_factory.mktemp("whole")
    process = train_in_another_process(directory)
    assert process.returncode == 0, process.stderr
    return Run.open(directory / "run"), process.stdout


def kill(directory: Path, place: str, step: int) -> None:
    assert train_in_another_process(directory, place, step).returncode == -9


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array in a `.keras` file, by its name."""
    found = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file:
        h5py.File(file).visititems(collect)
    return found


def assert_same_bits(actual: Path, expected: Path) -> None:
    found, wanted = arrays(actual), arrays(expected)
    assert len(wanted) > 10
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def assert_same_training(run: Run, expected: Run) -> None:
    """Weights and optimizer after the last step, and the finished model."""
    assert run.checkpoints()[-1].name == expected.checkpoints()[-1].name
    assert_same_bits(run.model_path, expected.model_path)
    newest = [each.checkpoints()[-1] / "model.keras" for each in (run, expected)]
    assert_same_bits(*newest)


def test_leaves_a_complete_run_folder(whole):
    run, _ = whole
    names = {path.name for path in run.directory.iterdir()}
    assert {
        "recipe.yaml",
        "history.json",
        "tokenizer",
        "checkpoints",
        "logs",
        "model.keras",
    } <= names
    steps = [path.name for path in run.checkpoints()]
    assert steps == ["step-00000002", "step-00000004", "step-00000005"]


@pytest.mark.slow
def test_begins_with_the_tokenizer_and_the_weights_of_another_run(whole, tmp_path):
    first, _ = whole
    run = run_after(first, tmp_path)
    train(run)
    for file in first.tokenizer_dir.iterdir():
        assert (run.tokenizer_dir / file.name).read_bytes() == file.read_bytes()
    # One step at the beginning of a slow warm-up moves no weight far.
    for begun, moved in zip(open_model(first).weights, open_model(run).weights, strict=True):
        np.testing.assert_allclose(to_numpy(moved), to_numpy(begun), atol=1e-4)


def run_after(first, folder, **model_settings):
    tiny_run.write_text(folder)
    recipe = recipe_after(first, folder)
    model = recipe.model.model_copy(update=model_settings)
    return Run.create(folder / "run", recipe.model_copy(update={"model": model}))


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"d_ff": 8}, r"shapes of the weights in .*model\.keras"),
        ({"num_heads": 4}, r"model\.keras was trained with num_heads=2, .*recipe has num_heads=4"),
        ({"activation": "gelu"}, "trained with activation=relu, .*recipe has activation=gelu"),
    ],
)
def test_another_run_must_have_the_model_of_the_recipe(whole, tmp_path, setting, message):
    run = run_after(whole[0], tmp_path, **setting)
    with pytest.raises(UserError, match=rf"training\.initial_run: .*{message}"):
        train(run)
    assert not run.store_dir.exists()


def test_another_run_must_have_the_tokenizer_of_the_recipe(whole, tmp_path):
    tiny_run.write_text(tmp_path)
    recipe = recipe_after(whole[0], tmp_path)
    tokenizer = recipe.tokenizer.model_copy(update={"vocabulary_size": 18, "joint": False})
    recipe = recipe.model_copy(update={"tokenizer": tokenizer})
    message = r"training\.initial_run: .*run has tokenizer\.vocabulary_size=17, .* recipe has .*=18"
    with pytest.raises(UserError, match=message):
        Run.create(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=message):
        train(Run(tmp_path / "run", recipe))


def test_a_run_with_adapters_cannot_be_the_first(whole, tmp_path):
    (tmp_path / "next").mkdir()
    first = Run.open(shutil.copytree(whole[0].directory, tmp_path / "first"))
    model = open_model(first)
    next(x for x in model._flatten_layers() if hasattr(x, "enable_lora")).enable_lora(1)
    model.save(first.model_path)
    with pytest.raises(UserError, match=r"training\.initial_run: .* is quantized or has LoRA"):
        train(run_after(first, tmp_path / "next"))


def test_dropout_and_longest_sentence_of_another_run_may_differ(whole, tmp_path):
    train(run_after(whole[0], tmp_path, dropout_rate=0.3, max_length=50))


@pytest.mark.slow
def test_training_ends_when_the_validation_loss_has_not_fallen(tmp_path, capsys):
    # A rate of almost 0 leaves the loss as it is after the first step.
    tiny_run.write_text(tmp_path)
    run = Run.create(tmp_path / "run", recipe_that_stands_still(tmp_path))
    train(run)
    names = [f"step-0000000{step}" for step in (1, 2, 3)]
    assert [path.name for path in run.checkpoints()] == names
    assert (
        "ended at step 3: 2 checkpoints without a lower validation loss" in capsys.readouterr().out
    )
    best = load_checkpoint_model(run.checkpoints()[0])
    for own, other in zip(open_model(run).weights, best.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(own), to_numpy(other))
    for left in (3, 2):  # resumed when it is over, and with what the second checkpoint remembers
        for path in run.checkpoints()[left:]:
            shutil.rmtree(path)
        train(run, resume=True)
        assert [path.name for path in run.checkpoints()] == names


@pytest.mark.slow
def test_all_processes_end_when_the_validation_loss_has_not_fallen(tmp_path):
    # Averages of weights that stand still come to a halt when rounding leaves nothing to add.
    settings = ["steps=60", "checkpoint_every=1", "peak_learning_rate=1e-30"]
    settings += ["early_stopping_patience=1", "gradient_checkpointing=true", "keep_checkpoints=2"]
    tiny_job.prepare(tmp_path, [f"training.{setting}" for setting in settings])
    chief, other = tiny_job.run_job(tmp_path, processes=2)
    assert chief.returncode == other.returncode == 0, chief.stderr + other.stderr
    assert "1 checkpoints without a lower validation loss" in chief.stdout
    assert "Training ended" not in other.stdout


def recipe_that_stands_still(directory: Path):
    recipe = tiny_run.recipe_for(directory)
    changes = {
        "steps": 9,
        "checkpoint_every": 1,
        "accumulation_steps": 1,
        "peak_learning_rate": 1e-30,
        "ema_momentum": None,
        "early_stopping_patience": 2,
        "validation_bleu_sentences": 0,
        "gradient_checkpointing": True,
    }
    return recipe.model_copy(
        update={
            "training": recipe.training.model_copy(update=changes),
            "evaluation": recipe.evaluation.model_copy(update={"average_last": 1}),
        }
    )


def recipe_after(first: Run, directory: Path):
    """One step that goes on from the weights of another run."""
    recipe = tiny_run.recipe_for(directory)
    changes = {
        "initial_run": first.directory,
        "steps": 1,
        "accumulation_steps": 1,
        "validation_bleu_sentences": 0,
        "warmup_steps": 4_000,
        "r_drop": 5.0,
    }
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=changes)})


def test_tensorflow_is_loaded_only_where_it_computes(whole):
    expected = "loaded" if keras.config.backend() == "tensorflow" else "absent"
    assert whole[1].splitlines()[-1] == f"TensorFlow is {expected}"


def test_logs_what_there_is_to_watch(whole):
    logs = EventAccumulator(str(whole[0].logs_dir))
    logs.Reload()
    training = {"loss", "accuracy", "perplexity", "learning_rate", "gradient_norm"}
    validation = {"validation/loss", "validation/accuracy", "validation/perplexity"}
    expected = {*training, "tokens_per_second", *validation, "validation/bleu"}
    assert set(logs.Tags()["scalars"]) == expected
    for tag in expected:
        assert [scalar.step for scalar in logs.Scalars(tag)] == [2, 4, 5]
    content = logs.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    settings = metadata.parse_session_start_info_plugin_data(content).hparams
    assert settings["model.d_model"].number_value == 4
    assert settings["training.steps"].number_value == tiny_run.STEPS
    rates = [scalar.value for scalar in logs.Scalars("learning_rate")]
    # warmup_steps=2, d_model=4: 4^-0.5 / sqrt(step) of the steps that come next.
    np.testing.assert_allclose(rates, 0.5 / np.sqrt([3, 5, 6]), rtol=1e-6)
    assert len(logs.Tensors("validation/translations")) == 3
    assert len(logs.Tensors("validation/attention/cross")) == 3
    words = (whole[0].logs_dir / "projector_joint_words.tsv").read_text("utf-8").splitlines()
    assert words == whole[0].tokenizer().source_pieces


@pytest.mark.slow
def test_resume_continues_bit_for_bit(whole, tmp_path):
    kill(tmp_path, "checkpoint", 4)
    left = tmp_path / "run" / "checkpoints"
    assert {path.name for path in left.iterdir()} == {".partial-step-00000004", "step-00000002"}
    assert_same_training(tiny_run.go_on(tmp_path), whole[0])
    assert not list(left.glob(".*"))


@pytest.mark.slow
def test_any_number_of_kills_makes_no_difference(whole, tmp_path):
    deaths = [("step", 0), ("checkpoint", 2), ("step", 3), ("step", 4), ("checkpoint", 5)]
    for place, step in deaths:
        kill(tmp_path, place, step)
    assert_same_training(tiny_run.go_on(tmp_path), whole[0])


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    before = (whole[0].directory / "model.keras").rename(tmp_path / "before.keras")
    again = tiny_run.go_on(whole[0].directory.parent)
    assert_same_bits(again.model_path, before)


@pytest.fixture
def copy(whole, tmp_path) -> Run:
    """The finished run in another folder, where its text lies too."""
    folder = shutil.copytree(whole[0].directory.parent, tmp_path / "copy")
    data = whole[0].recipe.data.model_copy(update={"directory": folder})
    return Run(folder / "run", whole[0].recipe.model_copy(update={"data": data}))


def test_another_number_of_checkpoints_is_averaged_again(copy):
    os.utime(copy.model_path, (2e9, 2e9))  # the times of files tell nothing
    last = open_model(copy, checkpoint="last").get_weights()
    evaluation = copy.recipe.evaluation.model_copy(update={"average_last": 1})
    recipe = copy.recipe.model_copy(update={"evaluation": evaluation})
    train(Run.resume(copy.directory, recipe), resume=True)
    for weight, expected in zip(open_model(copy).get_weights(), last, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert (copy.directory / "model.previous.keras").exists()


def test_models_of_older_releases_are_averaged_again_by_the_time_of_the_file(copy):
    with zipfile.ZipFile(copy.model_path) as archive:
        members = {x: archive.read(x) for x in archive.namelist() if x != AVERAGE_LAST_MEMBER}
    with zipfile.ZipFile(copy.model_path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    last = open_model(copy, checkpoint="last").get_weights()
    evaluation = copy.recipe.evaluation.model_copy(update={"average_last": 1})
    recipe = copy.recipe.model_copy(update={"evaluation": evaluation})
    train(Run.resume(copy.directory, recipe), resume=True)
    for weight, expected in zip(open_model(copy).get_weights(), last, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_a_number_of_checkpoints_that_changed_before_a_kill_is_averaged(copy, monkeypatch):
    evaluation = copy.recipe.evaluation.model_copy(update={"average_last": 1})
    changed = Run(copy.directory, copy.recipe.model_copy(update={"evaluation": evaluation}))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sys.modules[train.__module__], "fit", interrupted)
        train(changed, resume=True)
    before = copy.model_path.read_bytes()
    train(Run.open(copy.directory), resume=True)
    assert copy.model_path.read_bytes() != before
    assert (copy.directory / "model.previous.keras").read_bytes() == before


def test_a_copy_without_the_times_of_files_is_finished(copy, capsys):
    content, old = copy.model_path.read_bytes(), copy.model_path.stat().st_mtime - 1_000
    os.utime(copy.model_path, (old, old))
    assert run_info(copy.directory)["training"]["is_finished"]
    train(copy, resume=True)
    assert copy.model_path.read_bytes() == content
    assert f"{copy.model_path} is not changed" in capsys.readouterr().out


def test_a_damaged_model_is_made_again(copy, capsys):
    content = open_model(copy).get_weights()
    copy.model_path.write_bytes(copy.model_path.read_bytes()[:-99])
    train(copy, resume=True)
    for weight, expected in zip(open_model(copy).get_weights(), content, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert capsys.readouterr().err.endswith("Averaging checkpoints.\n")
    assert not (copy.directory / "model.previous.keras").exists()


def test_checkpoints_of_the_warmup_are_not_averaged(copy, capsys):
    last = open_model(copy, checkpoint="last").get_weights()
    training = copy.recipe.training.model_copy(update={"warmup_steps": tiny_run.STEPS})
    changed = Run(copy.directory, copy.recipe.model_copy(update={"training": training}))
    changed.recipe_path.write_text(changed.recipe.to_yaml())
    changed.model_path.unlink()
    train(changed, resume=True)
    for weight, expected in zip(changed.model().get_weights(), last, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert "training.warmup_steps=5: step-00000004\n" in capsys.readouterr().out


def test_early_stopping_leaves_out_the_warmup_but_for_the_best_checkpoint(copy, capsys):
    state = copy.checkpoints()[-1] / "state.json"
    content = json.loads(state.read_text())
    content["validation_losses"] = {"2": 9.0, "4": 7.0, "5": 8.0}
    state.write_text(json.dumps(content))
    settings = {"warmup_steps": tiny_run.STEPS + 1, "early_stopping_patience": 1}
    training = copy.recipe.training.model_copy(update=settings)
    changed = Run(copy.directory, copy.recipe.model_copy(update={"training": training}))
    changed.recipe_path.write_text(changed.recipe.to_yaml())
    changed.model_path.unlink()
    train(changed, resume=True)
    shown = capsys.readouterr().out
    assert "not averaged, because training.warmup_steps=6: step-00000005\n" in shown
    assert f"{copy.model_path} is the model of step-00000004\n" in shown


def test_an_average_of_a_training_that_was_too_short_is_told(copy, capsys):
    state = copy.checkpoints()[-1] / "state.json"
    content = json.loads(state.read_text())
    for first, is_told in ((9.0, True), (7.05, False)):
        state.write_text(json.dumps({**content, "validation_losses": {"4": first, "5": 7.0}}))
        copy.model_path.unlink()
        train(copy, resume=True)
        told = f"fell from 9 to 7 over these checkpoints. .* average {copy.directory} --last 1"
        assert bool(re.search(told, capsys.readouterr().out)) == is_told


def test_the_newest_checkpoint_is_not_proposed_if_an_earlier_one_is_better(copy, capsys):
    state = copy.checkpoints()[-1] / "state.json"
    content = json.loads(state.read_text())
    evaluation = copy.recipe.evaluation.model_copy(update={"average_last": 3})
    changed = Run(copy.directory, copy.recipe.model_copy(update={"evaluation": evaluation}))
    for middle, is_told in ((7.5, True), (6.5, False)):
        losses = {"2": 9.0, "4": middle, "5": 7.0}
        state.write_text(json.dumps({**content, "validation_losses": losses}))
        copy.model_path.unlink()
        train(changed, resume=True)
        assert ("fell from 9 to 7" in capsys.readouterr().out) == is_told


def test_the_newest_checkpoint_is_not_proposed_if_early_stopping_chose_earlier_ones(copy, capsys):
    state = copy.checkpoints()[-1] / "state.json"
    content = json.loads(state.read_text())
    losses = {"2": 9.0, "4": 7.0, "5": 9.5}
    state.write_text(json.dumps({**content, "validation_losses": losses}))
    copy.model_path.unlink()
    training = copy.recipe.training.model_copy(update={"early_stopping_patience": 1})
    train(Run(copy.directory, copy.recipe.model_copy(update={"training": training})), resume=True)
    shown = capsys.readouterr().out
    assert f"{copy.model_path} is the average of step-00000002, step-00000004\n" in shown
    assert "still fell" not in shown


def test_a_callback_that_ends_the_training_is_named_as_the_reason(copy, capsys):
    longer = copy.recipe.training.model_copy(update={"steps": 9, "early_stopping_patience": 9})
    run = Run(copy.directory, copy.recipe.model_copy(update={"training": longer}))

    def stop(epoch, logs):
        callback.model.stop_training = True

    callback = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    train(run, resume=True, callbacks=[callback])
    shown = capsys.readouterr().out
    assert re.search(r"ended at step [67]: a callback stopped it before step 9\.", shown), shown


def test_a_training_shorter_than_its_warmup_is_told(copy, capsys):
    train(copy, resume=True)
    assert "warmup_steps" not in capsys.readouterr().err
    longer = copy.recipe.training.model_copy(update={"warmup_steps": tiny_run.STEPS + 1})
    recipe = copy.recipe.model_copy(update={"training": longer})
    copy.recipe_path.write_text(recipe.to_yaml())
    train(Run(copy.directory, recipe), resume=True)
    told = "training.steps=5 is less than training.warmup_steps=6, so the learning rate does"
    assert told in capsys.readouterr().err


def test_resuming_a_finished_run_leaves_another_average(copy, capsys):
    average_checkpoints(copy.checkpoints()[:1], copy.model_path)
    content = copy.model_path.read_bytes()
    train(copy, resume=True)
    assert copy.model_path.read_bytes() == content
    assert f"{copy.model_path} is not changed" in capsys.readouterr().out


@pytest.mark.slow
def test_more_steps_replace_the_model_and_keep_a_copy(copy):
    content = copy.model_path.read_bytes()
    training = copy.recipe.training.model_copy(update={"steps": tiny_run.STEPS + 1})
    train(Run(copy.directory, copy.recipe.model_copy(update={"training": training})), resume=True)
    assert (copy.directory / "model.previous.keras").read_bytes() == content
    assert copy.model_path.read_bytes() != content


def test_changes_are_recorded_from_the_step_of_the_newest_checkpoint(copy, capsys):
    changes = {"steps": tiny_run.STEPS + 1, "logits_mebibytes": 1}
    training = copy.recipe.training.model_copy(update=changes)
    train(Run(copy.directory, copy.recipe.model_copy(update={"training": training})), resume=True)
    assert "step 5 on: training.steps was 5 and is now 6" in capsys.readouterr().out
    begun, changed = copy.history()
    backend = keras.config.backend()
    assert (begun["step"], begun["backend"], begun["changes"]) == (0, backend, {})
    assert (changed["step"], changed["backend"]) == (tiny_run.STEPS, backend)
    assert changed["changes"]["training.logits_mebibytes"] == [None, 1]
    assert Run.open(copy.directory).recipe.training == training


def test_a_changed_folder_that_is_not_read_is_told(copy, capsys):
    kept = copy.directory / "text"
    for is_kept in (False, True):
        folder = copy.directory.parent / f"moved-{is_kept}"
        shutil.copytree(copy.recipe.data.directory, folder, ignore=lambda *_: ["run"])
        if is_kept:
            kept.mkdir()
        data = copy.recipe.data.model_copy(update={"directory": folder})
        train(Run(copy.directory, copy.recipe.model_copy(update={"data": data})), resume=True)
        note = f"; the run reads its copy of the text in {kept}" if is_kept else ""
        assert f" and is now '{folder}'{note}\n" in capsys.readouterr().out


def test_a_changed_backend_is_told_if_it_trains(copy, capsys):
    (entry,) = copy.history()
    copy.history_path.write_text(json.dumps([{**entry, "backend": "other"}]))
    train(copy, resume=True)
    assert "the backend was" not in capsys.readouterr().out  # No step was done on it.
    assert copy.history()[-1]["backend"] == "other"
    longer = copy.recipe.training.model_copy(update={"steps": 6})
    train(Run(copy.directory, copy.recipe.model_copy(update={"training": longer})), resume=True)
    told = f"the backend was other and is now {keras.config.backend()}"
    assert f"changed from step 5 on: {told}" in capsys.readouterr().out
    assert copy.history()[-1]["backend"] == keras.config.backend()


def test_settings_are_checked_on_resume(copy):
    search = copy.recipe.evaluation.model_copy(update={"max_length": 100_000})
    with pytest.raises(UserError, match="evaluation: .*max_length"):
        train(Run(copy.directory, copy.recipe.model_copy(update={"evaluation": search})), True)
    assert len(copy.history()) == 1


def test_r_drop_without_dropout_is_refused(tmp_path):
    recipe = tiny_run.recipe_for(tmp_path)
    settings = {
        "training": recipe.training.model_copy(update={"r_drop": 5.0}),
        "model": recipe.model.model_copy(update={"dropout_rate": 0.0}),
    }
    with pytest.raises(UserError, match="no effect without model.dropout_rate.*r_drop=5"):
        check_settings(recipe.model_copy(update=settings))


def test_on_pytorch_jit_compile_needs_a_gpu(tmp_path):
    recipe = tiny_run.recipe_for(tmp_path)
    training = recipe.training.model_copy(update={"jit_compile": True})
    on_pytorch = keras.config.backend() == "torch"
    message = (
        "training: On PyTorch, jit_compile=True records CUDA graphs, which needs a GPU of CUDA"
    )
    with pytest.raises(UserError, match=message) if on_pytorch else nullcontext():
        check_settings(recipe.model_copy(update={"training": training}))


def test_early_stopping_that_begins_late_averages_checkpoints_that_are_left(copy, capsys):
    state = copy.checkpoints()[-1] / "state.json"
    content = json.loads(state.read_text())
    content["validation_losses"] = {"1": 0.5, "2": 9.0, "4": 7.0, "5": 8.0}
    state.write_text(json.dumps(content))
    shutil.rmtree(copy.checkpoints()[0])
    copy.model_path.unlink()
    training = copy.recipe.training.model_copy(update={"early_stopping_patience": 1})
    evaluation = copy.recipe.evaluation.model_copy(update={"average_last": 1})
    changes = {"training": training, "evaluation": evaluation}
    train(Run(copy.directory, copy.recipe.model_copy(update=changes)), resume=True)
    assert "The best checkpoint is step-00000004, with a validation loss of 7" in (
        capsys.readouterr().out
    )
    train(Run.open(copy.directory), resume=True)
    shown = capsys.readouterr().out
    assert "is finished by training.early_stopping_patience=1, so" in shown
    assert "resume it with a larger training.early_stopping_patience\n" in shown
    best = load_checkpoint_model(copy.checkpoints()[0])
    for own, other in zip(open_model(copy).weights, best.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(own), to_numpy(other))


def test_a_model_without_checkpoints_is_not_trained_again(copy):
    content = copy.model_path.read_bytes()
    shutil.rmtree(copy.checkpoints_dir)
    with pytest.raises(UserError, match=r"model\.keras exists, but there is no checkpoint"):
        train(copy, resume=True)
    assert copy.model_path.read_bytes() == content


def test_a_folder_in_place_of_the_lock_is_refused_before_training(copy):
    (copy.directory / ".write.lock").unlink()
    (copy.directory / ".write.lock").mkdir()
    shutil.rmtree(copy.tokenizer_dir)
    with pytest.raises(UserError, match=r"\.write\.lock must be a file"):
        train(copy, resume=True)
    assert not copy.tokenizer_dir.exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "model.position_encoding=spiral",
            "model: .*`position_encoding` must be one of .*'spiral'",
        ),
        ("model.position_encoding=learned", "data.max_length, .*max_length=16, length=24"),
        ("model.activation=reluu", "model: .*`activation` must be the name .* activation='reluu'"),
        ("model.d_model=1000000000", "model and tokenizer.vocabulary_size: the weights need"),
        ("evaluation.tokenize=ja-mecab", "tokenize=ja-mecab: requires"),
    ],
)
def test_settings_are_checked_before_anything_is_made(tmp_path, monkeypatch, setting, message):
    def missing(**settings):
        raise RuntimeError("requires extra dependencies")

    if "mecab" in setting:
        monkeypatch.setattr("keras_transformer.evaluation.metrics.BLEU", missing)
    tiny_run.write_text(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(tiny_run.recipe_for(tmp_path).to_yaml())
    small = ["model.max_length=16", "data.max_length=16"]
    run = Run.create(tmp_path / "run", load_recipe(path, [*small, setting]))
    with pytest.raises(UserError, match=message):
        train(run)
    assert {path.name for path in run.directory.iterdir()} == {"recipe.yaml", ".lock"}


@pytest.mark.parametrize("removed", [None, "store", "fingerprints.json"])
def test_training_does_not_resume_with_another_text_or_tokenizer(copy, removed):
    run, folder = copy, copy.directory.parent
    if removed == "store":
        shutil.rmtree(run.store_dir)
    elif removed:  # as in runs of older releases
        run.fingerprints_path.unlink()
    text = (folder / "text.en").read_text()
    (folder / "text.en").write_text(text.replace("a", "b"))
    with pytest.raises(UserError, match="store/train was encoded from another text"):
        train(run, resume=True)
    assert len(run.history()) == 1
    (folder / "text.en").write_text(text)
    shutil.rmtree(run.tokenizer_dir)
    Tokenizer.train([("f e", "d c")], vocabulary_size=10).save(run.tokenizer_dir)
    with pytest.raises(UserError, match="with another tokenizer. Restore"):
        train(run, resume=True)


def test_the_finished_model_knows_its_tokenizer(whole, tmp_path):
    run = Run(shutil.copytree(whole[0].directory, tmp_path / "run"), whole[0].recipe)
    assert run.tokenizer_fingerprint() == run.tokenizer().fingerprint
    shutil.rmtree(run.tokenizer_dir)
    Tokenizer.train([("a b c", "d e f")], vocabulary_size=17).save(run.tokenizer_dir)
    assert run.tokenizer_fingerprint() != run.tokenizer().fingerprint
    with pytest.raises(UserError, match="is not the tokenizer"):
        open_model(run)
