"""`keras-transformer schema`."""

import json

from support.command_line import succeeds

from keras_transformer.recipe.settings import all_keys


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
