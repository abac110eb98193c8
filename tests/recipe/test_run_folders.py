"""Runs that the package contains, by name."""

import shutil

import pytest
from support.tiny_run import recipe_for

from keras_transformer.errors import UserError
from keras_transformer.recipe import run_folders as module
from keras_transformer.recipe.run_folders import find_run, shipped_runs
from keras_transformer.runs.run import Run


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package that contains the run `one`, and an empty Keras home and current folder."""
    folder = tmp_path / "package"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "recipe.yaml").write_text(recipe_for(tmp_path).to_yaml())
    (folder / "one" / "model.keras").write_bytes(b"weights")
    (folder / "export" / "1").mkdir(parents=True)  # a SavedModel is no run
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "absent", folder))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_a_named_run_is_a_copy_so_the_package_is_never_written(package, tmp_path):
    assert shipped_runs() == {"one": package / "one"}
    (package / "one" / "scores.json").write_text('[{"split": "test"}]')
    run = Run.open("one")
    assert run.directory.name == "one" and (tmp_path / "home") in run.directory.parents
    assert run.model_path.read_bytes() == b"weights"
    assert run.scores.entries() == [{"split": "test"}]
    run.scores_path.write_text("[{}, {}]")
    assert Run.open("one").scores.entries() == [{}, {}]
    assert (package / "one" / "scores.json").read_text() == '[{"split": "test"}]'


def test_files_beside_a_run_are_no_part_of_it(package):
    before = find_run("one")
    (package / "one" / "1").mkdir()
    (package / "one" / "1" / "saved_model.pb").write_bytes(b"graph")
    (package / "one" / "tokenizer").mkdir()
    (package / "one" / "tokenizer" / ".DS_Store").touch()
    assert find_run("one") == before
    (package / "one" / "model.keras").write_bytes(b"other weights")
    after = find_run("one")
    assert {path.name for path in after.iterdir()} == {"model.keras", "recipe.yaml"}
    assert (after / "model.keras").read_bytes() == b"other weights"
    assert (before / "model.keras").read_bytes() == b"weights"


def test_a_folder_of_the_user_comes_first(package):
    shutil.copytree(package / "one", "one")
    assert str(find_run("one")) == "one"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "does not exist. The package has one$"),
        ("package/one", "does not exist. The package has one$"),
        ("../package/export", "it holds no recipe.yaml"),
        ("../package/one/recipe.yaml", "it is a file. A recipe's run is in runs/"),
        ("Where is the station?", "it looks like a sentence. Write sentences to standard"),
        ("mine", r"does not exist \(did you mean runs/mine\?\)"),
        ("runs/mime", r"does not exist \(did you mean runs/mine\?\)"),
    ],
)
def test_what_is_no_run_folder_is_told(package, name, message):
    shutil.copytree(package / "one", "runs/mine")
    with pytest.raises(UserError, match=f"is no run folder: .*{message}"):
        find_run(name)
