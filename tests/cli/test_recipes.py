"""`keras-transformer recipes`."""

import pytest
from support.command_line import fails, succeeds

from keras_transformer.recipe.files import SHIPPED_RECIPES, recipe_files


@pytest.fixture
def shipped():
    return {path.stem: path for path in SHIPPED_RECIPES[1].glob("*.yaml")}


def test_the_list_has_what_each_recipe_is_and_states(shipped):
    shown = succeeds("recipes")
    blocks = dict(block.split(":\n", 1) for block in shown.strip().split("\n\n"))
    assert list(blocks) == sorted(shipped)
    text = " ".join(blocks["multi30k_en_de"].split())
    assert "description Image captions, lowercased and tokenized, English to German." in text
    assert (
        "transformer, 4 layers, d_model 128, 9,728 pieces; 11,500 steps of 4,096 target tokens"
        in text
    )
    assert "time 2 h 9 min" in text
    assert text.endswith("beam 5); multi30k_en_de_r_drop goes on from here")


def test_a_name_prints_the_file_with_its_comments(shipped):
    assert succeeds("recipes", "quickstart") == shipped["quickstart"].read_text("utf-8")
    assert "no recipe nope: give" in fails("recipes", "nope")


def test_recipes_of_the_current_folder_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    own = "name: mine\ndescription: My text.\ndata: {generator: {}}\n"
    (tmp_path / "recipes" / "quickstart.yaml").write_text(own)
    (tmp_path / "recipes" / "broken.yaml").write_text("name: {")
    (tmp_path / "recipes" / "folder.yaml").mkdir()
    assert "folder" not in recipe_files()
    assert succeeds("recipes", "quickstart") == own
    shown = " ".join(succeeds("recipes").split())
    assert "quickstart: description My text. size transformer, 6 layers" in shown
    assert "broken: problem recipes/broken.yaml: cannot be read as YAML" in shown
