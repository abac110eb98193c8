"""The command `schema`."""

import json

import click


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Write the JSON schema, for editors.")
def command(as_json: bool) -> None:
    """List the keys of a recipe: type, range, default and meaning.

    \b
    keras-transformer schema
    keras-transformer schema | grep -A1 training.steps
    keras-transformer schema --json > recipe.schema.json
    """
    from keras_transformer.recipe.settings import Recipe, all_keys

    if as_json:
        click.echo(json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False))
        return
    for key in all_keys():
        default = f"; default: {key.default}" if key.default not in ("", "required") else ""
        required = "; required" if key.default == "required" else ""
        click.echo(f"{key.name}: {key.value}{default}{required}")
        meaning = key.meaning + " May change on resume." * key.may_change
        click.echo(click.wrap_text(meaning, 80, "    ", "    "))
