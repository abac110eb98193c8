"""Recipes are read from YAML, with messages that name file and key."""

from pathlib import Path

import pytest

from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe

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
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(UserError) as error:
        load_recipe(path)
    assert str(error.value) == f"{path}: {message}"


def test_overrides_replace_and_are_yaml(path):
    recipe = load_recipe(
        path,
        [
            "training.steps=9",
            "model.norm_first=true",
            "training.initial_run=a b",
            "description=x=y",
        ],
    )
    assert recipe.training.steps == 9
    assert recipe.model.overrides == {"norm_first": True}
    assert recipe.training.initial_run == Path("a b")
    assert recipe.description == "x=y"


@pytest.mark.parametrize("override", ["training.steps", "=3", "name.first=a", "training.steps=["])
def test_override_of_another_form_is_refused_and_echoed(path, override):
    with pytest.raises(UserError) as error:
        load_recipe(path, [override])
    assert repr(override) in str(error.value)


def test_unknown_override_is_refused_with_the_nearest_key(path):
    with pytest.raises(UserError) as error:
        load_recipe(path, ["seed=3", "training.acumulation_steps=2"])
    assert str(error.value) == (
        f"{path} with `overrides` training.acumulation_steps=2: unknown key "
        "training.acumulation_steps; did you mean training.accumulation_steps?"
    )


def test_the_tokenizer_of_the_initial_run_is_the_default(path, tmp_path):
    first = tmp_path / "first"
    initial, joint = f"training.initial_run={first}", "tokenizer.joint=true"
    assert load_recipe(path, [initial]).tokenizer == load_recipe(path).tokenizer  # no such run yet
    first.mkdir()
    settings = ["tokenizer.vocabulary_size=99", "tokenizer.joint=false"]
    (first / "recipe.yaml").write_text(load_recipe(path, settings).to_yaml())
    found = load_recipe(path, [initial, joint]).tokenizer
    assert (found.vocabulary_size, found.joint) == (99, True)


def test_a_run_folder_stands_for_its_recipe(path, tmp_path):
    (tmp_path / "run").mkdir()
    path.rename(tmp_path / "run" / "recipe.yaml")
    assert load_recipe(tmp_path / "run", ["training.steps=8"]).training.steps == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "a recipe must not use YAML aliases"),
        ("description: " + "[" * 10_000, "maximum recursion depth"),
        ("description: 2020-99-99", "month must be in 1..12"),
        ("description: !!int x", "invalid literal for int"),
        ("description: !!bool x", ""),
        ("#" * 2**18 + "\n", "a recipe must have at most 262,144 bytes"),
    ],
)
def test_hostile_yaml_is_refused_in_one_line(path, text, message):
    path.write_text(f"{path.read_text()}{text}")
    with pytest.raises(
        UserError, match=f"minimal.yaml: cannot be read as YAML: .*{message}"
    ) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1_000
