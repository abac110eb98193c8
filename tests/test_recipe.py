"""Recipes: validated, with messages that name file and key."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from keras_transformer.errors import UserError
from keras_transformer.recipe import Recipe, known_keys, load_recipe

RECIPES = Path(__file__).parent.parent / "recipes"

MINIMAL = """
name: minimal
data: {generator: {}}
training:
  steps: 7
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return path


def test_defaults_are_the_papers(path):
    recipe = load_recipe(path)
    assert recipe.model.preset == "base"
    assert recipe.model.overrides == {}
    training, evaluation = recipe.training, recipe.evaluation
    assert (training.adam_beta_1, training.adam_beta_2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.warmup_steps, training.label_smoothing) == (4000, 0.1)
    assert (evaluation.beam_size, evaluation.length_penalty) == (4, 0.6)


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_recipes_are_valid_and_named_like_their_files(file):
    assert load_recipe(file).name == file.stem
    assert load_recipe(file.stem) == load_recipe(file)


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_recipes_say_command_hardware_time_steps_and_score(file):
    header = file.read_text()
    for entry in ("command", "hardware", "time", "steps", "score"):
        assert f"# {entry}:" in header


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "  warmup_step: 3",
            "unknown key training.warmup_step; did you mean training.warmup_steps?",
        ),
        ("warmup_steps: 3", "unknown key warmup_steps; did you mean training.warmup_steps?"),
        (
            "  steps: -1",
            "training.steps: Input should be greater than 0. Received: training.steps=-1",
        ),
        ("zzz: 3", "unknown key zzz"),
    ],
)
def test_wrong_key_or_value_is_refused_by_file_and_key(path, line, message):
    path.write_text(f"{MINIMAL}{line}\n")
    with pytest.raises(UserError) as error:
        load_recipe(path)
    assert str(error.value) == f"{path}: {message}"


def test_unreadable_yaml_is_refused_in_one_line(path):
    path.write_text("name: [")
    with pytest.raises(UserError, match="cannot be read as YAML") as error:
        load_recipe(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_something_other_than_a_mapping_is_refused(path):
    path.write_text("- name")
    with pytest.raises(UserError, match="a recipe is a mapping"):
        load_recipe(path)


def test_unknown_recipe_names_the_known_ones():
    with pytest.raises(UserError, match="no recipe quickstar.*multi30k_en_de, .*quickstart"):
        load_recipe("quickstar")


def test_overrides_replace_and_are_yaml(path):
    recipe = load_recipe(
        path,
        ["training.steps=9", "model.norm_first=true", "data.directory=a b", "description=x=y"],
    )
    assert recipe.training.steps == 9
    assert recipe.model.overrides == {"norm_first": True}
    assert recipe.data.directory == Path("a b")
    assert recipe.description == "x=y"


@pytest.mark.parametrize("override", ["training.steps", "=3", "name.first=a", "training.steps=["])
def test_override_of_another_form_is_refused_and_echoed(path, override):
    with pytest.raises(UserError) as error:
        load_recipe(path, [override])
    assert repr(override) in str(error.value)


def test_unknown_override_is_refused_with_the_nearest_key(path):
    with pytest.raises(UserError, match="did you mean training.accumulation_steps?"):
        load_recipe(path, ["training.acumulation_steps=2"])


def test_yaml_round_trip_keeps_every_value(path, tmp_path):
    recipe = load_recipe(path, ["training.peak_learning_rate=0.001", "data.directory=ü"])
    written = tmp_path / "written.yaml"
    written.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(written) == recipe


def test_differences_name_key_and_both_values_but_not_the_folder(path):
    one = load_recipe(path, ["data.directory=here"])
    other = load_recipe(path, ["data.directory=there", "training.steps=8"])
    assert one.differences(other) == ["training.steps (7 and 8)"]


@pytest.mark.parametrize("data", ["{}", "{generator: {}, train: {source: a, target: b}}"])
def test_data_is_files_or_a_generator(path, data):
    path.write_text(f"name: minimal\ndata: {data}\n")
    with pytest.raises(UserError, match="data: give "):
        load_recipe(path)


@pytest.mark.parametrize(
    "settings", [["model.attention_pattern=local"], ["model.attention_window=64"]]
)
def test_windows_belong_to_patterns(path, settings):
    with pytest.raises(UserError, match="model: attention_window must be given with"):
        load_recipe(path, settings)


def test_patterns_reach_the_model(path):
    settings = ["model.attention_pattern=strided", "model.attention_window=64"]
    expected = {"attention_pattern": "strided", "attention_window": 64}
    assert load_recipe(path, settings).model.overrides == expected


def test_averaging_more_checkpoints_than_are_kept_is_refused(path):
    with pytest.raises(UserError, match="Received: keep_checkpoints=5, average_last=6"):
        load_recipe(path, ["evaluation.average_last=6"])


def test_a_recipe_cannot_be_changed(path):
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(path).training.steps = 3


def test_known_keys_reach_into_optional_sections():
    keys = list(known_keys())
    assert {"data.train.source", "data.generator.test", "training.steps"} <= set(keys)
    assert keys[0] == "name" and "data" in Recipe.model_fields
