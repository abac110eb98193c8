"""`keras-transformer info`, `recipes` and `schema`."""

import json
import shutil

import pytest
from support.command_line import fails, succeeds

from keras_transformer import Run
from keras_transformer.recipe.files import SHIPPED_RECIPES, recipe_files
from keras_transformer.recipe.settings import all_keys
from keras_transformer.translation.open_run import open_model


def test_a_trained_run(run):
    lines = succeeds("info", run).splitlines()
    rows = [line.split(maxsplit=1) for line in lines]
    shown = {label: text for label, text in rows if label not in ("last", "best", "next")}
    assert shown["run"] == str(run)
    assert shown["recipe"] == "digits (en to de)"
    assert "num_layers 1, d_model 8, num_heads 2, d_ff 11" in shown["model"]
    assert shown["parameters"] == f"{open_model(Run.open(run)).count_params():,}"
    assert shown["vocabulary"] == "60 pieces for both languages"
    assert shown["training"].startswith(
        "finished; 4 of 4 steps done; checkpoints of the steps 2, 4"
    )
    assert any(line.startswith("last validation  step 4: loss ") for line in lines)
    assert any("bleu" in line for line in lines if line.startswith("best validation  step "))
    assert lines[-3].endswith(f"keras-transformer translate {run}")


def test_json_has_null_for_what_is_not_a_number(run):
    state = run / "checkpoints" / "step-00000004" / "state.json"
    content = json.loads(state.read_text())
    content["validation_losses"]["4"] = float("nan")
    state.write_text(json.dumps(content))
    shutil.rmtree(run / "logs")
    shown = succeeds("info", run, "--json")
    last = json.loads(shown, parse_constant=pytest.fail)["validation"]["last"]
    assert last == {"step": 4, "loss": None}


def test_scores_and_problems_are_shown(run):
    score = {"split": "test", "metric": "BLEU", "score": 12.5, "signature": "nrefs:1"}
    (run / "scores.json").write_text(json.dumps([{**score, "checkpoint": "step-00000004"}]))
    assert "step-00000004, test: BLEU 12.50  nrefs:1" in succeeds("info", run)
    (run / "scores.json").write_text("[")
    assert "scores.json cannot be read" in succeeds("info", run)


def test_text_of_a_stranger_does_not_control_the_terminal(run):
    recipe = (run / "recipe.yaml").read_text()
    hostile = recipe.replace("description: ''", r'description: "a\e[2Jb\nc"')
    assert hostile != recipe
    (run / "recipe.yaml").write_text(hostile)
    lines = succeeds("info", run).splitlines()
    assert any(line.endswith("  a [2Jb c") for line in lines)


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
    of_a_program = f"{own}model: {{architecture: of_a_program, d_model: 8}}\n"
    (tmp_path / "recipes" / "other.yaml").write_text(of_a_program)
    (tmp_path / "recipes" / "wrong.yaml").write_text(f"{own}model: {{preset: huge}}\n")
    (tmp_path / "recipes" / "folder.yaml").mkdir()
    assert "folder" not in recipe_files()
    assert succeeds("recipes", "quickstart") == own
    shown = " ".join(succeeds("recipes").split())
    assert "quickstart: description My text. size transformer, 6 layers" in shown
    assert "other: description My text. size of_a_program, d_model 8, " in shown
    assert "broken: problem recipes/broken.yaml: cannot be read as YAML" in shown
    assert "wrong: problem the architecture transformer has the presets" in shown


def test_schema_shows_type_range_default_and_meaning_of_each_key():
    shown = succeeds("schema")
    steps = "\ntraining.steps: integer, > 0, ≤ 99,999,999; default: 100000\n"
    assert f"{steps}    Total number of optimizer steps. May change on resume.\n" in shown
    assert shown.startswith("name: text; required\n    Name of the run folder.\n")
    assert [line.partition(":")[0] for line in shown.splitlines() if line[0] != " "] == list(
        key.name for key in all_keys()
    )


def test_schema_is_json_for_editors():
    schema = json.loads(succeeds("schema", "--json"))
    steps = schema["$defs"]["Training"]["properties"]["steps"]
    assert (steps["default"], steps["exclusiveMinimum"]) == (100_000, 0)
    assert steps["description"].startswith("Total number")
    assert schema["additionalProperties"] is False
