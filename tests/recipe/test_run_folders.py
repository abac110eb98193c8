"""Runs that the package contains, by name."""

import shutil

import pytest
from keras_transformer.runs.shipped import find_run, shipped_runs
from support.tiny_run import recipe_for

from keras_transformer.errors import UserError
from keras_transformer.runs import shipped as module
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


def test_the_name_of_a_run_in_runs_proposes_its_path(package):
    shutil.copytree(package / "one", "runs/mine")
    with pytest.raises(UserError, match="mine is no run folder: .*did you mean runs/mine"):
        find_run("mine")


def test_runs_of_the_package_have_names(package):
    assert shipped_runs() == {"one": package / "one"}


def test_commands_have_the_name_of_a_run_in_the_package(package, tmp_path):
    assert Run.open("one").command("evaluate", "") == "keras-transformer evaluate one "
    run = Run.open(shutil.copytree(package / "one", tmp_path / "mine"))
    assert run.command("evaluate", "") == f"keras-transformer evaluate {tmp_path / 'mine'} "


def test_a_named_run_is_a_copy_so_the_package_is_never_written(package, tmp_path):
    run = Run.open("one")
    assert run.directory.name == "one"
    assert (tmp_path / "home") in run.directory.parents
    assert run.model_path.read_bytes() == b"weights"
    run.scores_path.write_text("[]")
    assert find_run("one") == run.directory
    assert not (package / "one" / "scores.json").exists()


def test_scores_of_a_run_are_copied_and_more_can_be_added(package):
    (package / "one" / "scores.json").write_text('[{"split": "test"}]')
    run = Run.open("one")
    assert run.scores.entries() == [{"split": "test"}]
    run.scores_path.write_text("[{}, {}]")
    assert Run.open("one").scores.entries() == [{}, {}]
    assert (package / "one" / "scores.json").read_text() == '[{"split": "test"}]'


def test_exports_beside_a_run_of_a_source_tree_are_no_part_of_it(package):
    before = find_run("one")
    (package / "one" / "1").mkdir()
    (package / "one" / "1" / "saved_model.pb").write_bytes(b"graph")
    (package / "one" / ".write.lock").touch()
    assert find_run("one") == before
    (package / "one" / "model.keras").write_bytes(b"other weights")
    assert {path.name for path in find_run("one").iterdir()} == {"model.keras", "recipe.yaml"}


def test_hidden_files_of_a_file_manager_do_not_change_a_copy(package):
    for folder in (package / "one", find_run("one")):
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / ".DS_Store").touch()
        assert find_run("one").is_dir()


def test_a_copy_that_someone_changed_is_refused(package):
    (find_run("one") / "model.keras").write_bytes(b"other weights")
    with pytest.raises(UserError, match="must be a copy of .*, but was changed: remove the folder"):
        find_run("one")


def test_another_release_of_a_run_gets_another_copy(package):
    before = find_run("one")
    (package / "one" / "model.keras").write_bytes(b"other weights")
    after = find_run("one")
    assert after != before
    assert (after / "model.keras").read_bytes() == b"other weights"
    assert (before / "model.keras").read_bytes() == b"weights"


def test_a_folder_of_the_user_comes_first(package):
    shutil.copytree(package / "one", "one")
    assert str(find_run("one")) == "one"


def test_a_copy_that_was_interrupted_is_made_again(package, monkeypatch):
    def interrupted(source, target):
        target.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(module, "copyfile", interrupted)
        find_run("one")
    assert Run.open("one").model_path.read_bytes() == b"weights"


def test_a_recipe_and_a_sentence_are_no_run_folders(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: mine\n")
    with pytest.raises(UserError, match="it is a file. A recipe's run is in runs/"):
        Run.open(recipe)
    with pytest.raises(UserError, match="it looks like a sentence. Write sentences to standard"):
        Run.open("Where is the station?")


def test_a_similar_run_beside_it_is_named(tmp_path):
    run = tmp_path / "runs" / "english_en_de"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: a\n")
    with pytest.raises(
        UserError, match=rf"it does not exist \(did you mean {run}\?\). The package"
    ):
        Run.open(tmp_path / "runs" / "english_de")


@pytest.mark.parametrize("name", ["two", "package/one", "../package/two", "export"])
def test_other_names_are_refused_with_the_names_that_exist(name):
    with pytest.raises(UserError, match=f"{name} is no run folder: .* The package has one$"):
        Run.open(name)
