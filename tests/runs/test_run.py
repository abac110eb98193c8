"""The run folder."""

import json

import pytest
from support.locking_process import locked_by_another_process

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.run import Run, training_lock


def changed(run, *settings):
    return load_recipe(run.directory, settings)


def add_checkpoint(run, step):
    folder = run.checkpoints_dir / f"step-{step:08d}"
    folder.mkdir(parents=True)
    state = {"sha256": {"model.keras": "digest"}, "validation_losses": {}}
    (folder / "state.json").write_text(json.dumps(state))


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_run_with_a_relative_path_survives_a_change_of_directory(run, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    for name in (run.directory.name, f"./{run.directory.name}", "."):
        monkeypatch.chdir(run.directory if name == "." else run.directory.parent)
        opened = Run.open(name)
        monkeypatch.chdir(tmp_path / "other")
        assert opened.recipe_path.read_text() == run.recipe_path.read_text()
        assert Run.resume(opened.directory, opened.recipe).directory == run.directory


@pytest.mark.parametrize(
    "name",
    ["recipe.yaml", "model.keras", "checkpoints", "tokenizer", "store", "logs", "history.json"],
)
def test_files_of_others_are_not_replaced_by_a_new_run(recipe, tmp_path, name):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / name).write_text("years of work")
    with pytest.raises(UserError, match=f"{folder} already holds {name}, which a new run would"):
        Run.create(folder, recipe)
    assert names(folder) == {name}


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_a_place_without_room_for_a_run_is_refused(recipe, tmp_path, place):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match=f"{place} cannot be a run folder: "):
        Run.create(tmp_path / place, recipe)
    assert (tmp_path / "file").read_text() == "text"


def test_resume_takes_the_same_recipe_and_refuses_another(run):
    assert Run.resume(run.directory, changed(run)).directory == run.directory
    with pytest.raises(UserError, match=r"differ in seed \(1 and 2\), model.d_ff \(None and 9\)$"):
        changes = ["seed=2", "model.d_ff=9", "training.checkpoint_every=3"]
        Run.resume(run.directory, changed(run, *changes))


def test_steps_may_change_but_not_to_fewer_than_are_done(run):
    add_checkpoint(run, 20)
    for steps in (20, 200_000):
        recipe = changed(run, f"training.steps={steps}")
        assert Run.resume(run.directory, recipe).recipe.training.steps == steps
    message = r"training\.steps \(100000 and 19; 20 steps are already done\)$"
    with pytest.raises(UserError, match=message):
        Run.resume(run.directory, changed(run, "training.steps=19"))


@pytest.mark.parametrize("content", [b"[{", b"[" * 100_000, b"\xff", b"{}", b"3", b"[3]"])
def test_damaged_scores_and_a_damaged_history_are_refused_and_kept(run, content):
    for path, read in (
        (run.scores_path, run.scores.entries),
        (run.history_path, lambda: run.record(0, "jax")),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=path.name):
            read()
        assert path.read_bytes() == content


def test_one_process_trains_in_a_run_and_a_kill_leaves_no_lock(run):
    with locked_by_another_process(run.directory):
        for lock in (run.training(), training_lock(run.directory)):
            message = f"another process is training in {run.directory}"
            with pytest.raises(UserError, match=message), lock:
                raise AssertionError("locked")
        assert Run.open(run.directory).recipe == run.recipe
        run.model_path.write_bytes(b"weights")
        entry = {"split": "test", "metric": "BLEU", "score": 41.0, "signature": "nrefs:1"}
        run.scores.add(**entry, options=SearchOptions())
        run.model_path.unlink()
        assert run.is_training()
        add_checkpoint(run, 1)
        with pytest.raises(UserError, match=r"Another process is training: wait .* a step \(1\)"):
            raise run.unfinished()
    assert not run.is_training()
    with run.training(), training_lock(run.directory):
        assert run.recipe_path.exists()


def test_a_failed_start_leaves_what_the_run_did_not_make(recipe, tmp_path):
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    run, other = Run.create(folder, recipe), Run.create(tmp_path / "new", recipe)
    with pytest.raises(ValueError, match="^stop$"), run.training(), other.training():
        run.tokenizer_dir.mkdir()
        (run.directory / "train.log").write_text("of the user")
        raise ValueError("stop")
    assert names(folder) == {"data", "train.log"}
    assert not other.directory.exists()
