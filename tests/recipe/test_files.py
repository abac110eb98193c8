"""Recipes are read from YAML, and runs are found by path or by name."""

import shutil
from pathlib import Path

import pytest
import support.older_models  # noqa: F401  registers the architectures of three recipes
from support.tiny_run import recipe_for

from keras_transformer.errors import UserError
from keras_transformer.recipe import files as module
from keras_transformer.recipe.files import find_run, load_recipe, shipped_runs
from keras_transformer.runs.run import Run

RECIPES = Path(__file__).parents[2] / "recipes"

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_recipes_are_valid_and_say_command_hardware_time_steps_and_score(file):
    assert load_recipe(file).name == file.stem
    assert load_recipe(file.stem) == load_recipe(file)
    header = file.read_text()
    for entry in ("command", "hardware", "time", "steps", "score"):
        assert f"# {entry}:" in header


def test_overrides_replace_and_are_yaml(path):
    overrides = ["training.steps=9", "model.norm_first=true", "training.initial_run=a b"]
    recipe = load_recipe(path, [*overrides, "description=x=y"])
    assert (recipe.training.steps, recipe.description) == (9, "x=y")
    assert recipe.model.overrides == {"norm_first": True}
    assert recipe.training.initial_run == Path("a b")


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("  warmup_step: 3", [], ": unknown key training.warmup_step; did you mean training.war"),
        ("", ["training.x=2"], " with training.x=2: unknown key training.x"),
        ("", ["training.steps"], "section.key=value. Received: 'training.steps'"),
        (
            "",
            ["name.first=a"],
            "name is not a section, or the number of one in a list. Received: 'name.first=a'",
        ),
        ("", ["training.steps=["], "training.steps must be YAML. Received: 'training.steps=['"),
        (LAUGHS, [], ": cannot be read as YAML: YAML must have no aliases"),
        ("description: " + "[" * 10_000, [], "and 100 levels"),
        ("description: 2020-99-99", [], "cannot be read as YAML: month must be in 1..12"),
        ("description: !!int x", [], "invalid literal for int"),
        ("#" * 2**18 + "\n", [], "at most 262,144 characters"),
    ],
)
def test_wrong_text_and_overrides_are_refused_in_one_line(path, text, overrides, message):
    path.write_text(f"{path.read_text()}{text}\n")
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    found = str(caught.value)
    assert message in found and "\n" not in found and len(found) < 1_000


@pytest.mark.parametrize("key", ["initial_run", "teacher"])
def test_the_tokenizer_of_another_run_is_the_default(path, tmp_path, key, monkeypatch):
    first = tmp_path / "first"
    initial, joint = f"training.{key}={first}", "tokenizer.joint=true"
    assert load_recipe(path, [initial]).tokenizer == load_recipe(path).tokenizer  # no such run yet
    first.mkdir()
    kind, drawn = "tokenizer.model_type=unigram", "training.subword_regularization=0.2"
    settings = ["tokenizer.vocabulary_size=99", "tokenizer.joint=false", kind]
    (first / "recipe.yaml").write_text(load_recipe(path, settings).to_yaml())
    found = load_recipe(path, [initial, joint, drawn]).tokenizer
    assert (found.vocabulary_size, found.joint) == (99, True)
    monkeypatch.chdir(tmp_path)  # The recipe of a run has a path that is right in any folder.
    assert getattr(load_recipe(path, [f"training.{key}=first"]).training, key) == first


def test_a_run_folder_stands_for_its_recipe_and_similar_names_are_proposed(path, tmp_path):
    (tmp_path / "run").mkdir()
    path.rename(tmp_path / "run" / "recipe.yaml")
    assert load_recipe(tmp_path / "run", ["training.steps=8"]).training.steps == 8
    with pytest.raises(UserError, match=r"no recipe quikstart \(did you mean quickstart\?\)"):
        load_recipe("quikstart")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that contains the run `one`, and an empty Keras home and current folder."""
    folder = tmp_path / "package"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "recipe.yaml").write_text(recipe_for(tmp_path).to_yaml())
    (folder / "one" / "model.keras").write_bytes(b"weights")
    (folder / "one" / "scores.json").write_text('[{"split": "test"}]')
    (folder / "one" / ".DS_Store").touch()
    (folder / "export" / "1").mkdir(parents=True)  # a SavedModel is no run
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(module, "_SHIPPED_RUNS", (tmp_path / "absent", folder))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_a_named_run_is_a_copy_so_the_package_is_never_written(package, tmp_path):
    assert shipped_runs() == {"one": package / "one"}
    run = Run.open("one")
    assert run.directory.name == "one" and (tmp_path / "home") in run.directory.parents
    assert {x.name for x in run.directory.iterdir()} == {
        "model.keras",
        "recipe.yaml",
        "scores.json",
    }
    run.scores_path.write_text("[{}, {}]")
    assert Run.open("one").scores.entries() == [{}, {}]
    assert (package / "one" / "scores.json").read_text() == '[{"split": "test"}]'
    (package / "one" / "model.keras").write_bytes(b"other weights")
    assert (find_run("one") / "model.keras").read_bytes() == b"other weights"
    assert run.model_path.read_bytes() == b"weights"
    shutil.copytree(package / "one", "one")
    assert str(find_run("one")) == "one"  # A folder of the user comes first.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "does not exist. The package has one$"),
        ("../package/export", "it holds no recipe.yaml"),
        ("../package/one/recipe.yaml", "it is a file"),
        ("Where is the station?", "it looks like a sentence. Write sentences to standard"),
        ("mine", r"does not exist \(did you mean runs/mine\?\)"),
        ("runs/mime", r"does not exist \(did you mean runs/mine\?\)"),
    ],
)
def test_what_is_no_run_folder_is_told(package, name, message):
    shutil.copytree(package / "one", "runs/mine")
    with pytest.raises(UserError, match=f"is no run folder: .*{message}"):
        find_run(name)
