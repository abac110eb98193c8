"""The keys of a recipe in words."""

from keras_transformer.recipe.schema import all_keys, keys_of
from keras_transformer.recipe.settings import Recipe

KEYS = {key.name: key for key in all_keys()}


def test_every_key_has_a_meaning_on_one_line():
    assert {"data.train.source", "data.generator.test", "training.steps"} <= KEYS.keys()
    assert all(key.meaning and key.value and "\n" not in key.meaning for key in KEYS.values())
    schema = Recipe.model_json_schema()
    keys = [key for part in schema["$defs"].values() for key in part["properties"].values()]
    assert not any("\n" in key.get("description", "") for key in keys)


def test_types_ranges_and_defaults():
    steps = KEYS["training.steps"]
    assert (steps.value, steps.default) == ("integer, > 0, ≤ 99,999,999", "100000")
    assert KEYS["model.dropout_rate"].value == "number, ≥ 0, < 1"
    assert KEYS["training.early_stopping_patience"].value == "integer, > 0, ≤ 99,999,999"
    assert KEYS["tokenizer.model_type"].value == "bpe, unigram, word"
    assert KEYS["training.jit_compile"].value == "true or false or auto"
    assert KEYS["tokenizer.joint"].default == "true"
    assert KEYS["data.download.sha256"].value == "mapping"
    assert (KEYS["name"].default, KEYS["description"].default) == ("required", "")


def test_a_section_comes_before_its_keys():
    top = [key.name for key in keys_of(Recipe)]
    assert top == ["name", "description", "seed", "data", "tokenizer", "model", "training",
                   "evaluation"]  # fmt: skip
    assert KEYS["data"].value == "section"
    assert KEYS["data.train"].meaning.startswith("The text of one split")
