"""The commands that only read files: `info`, `recipes` and `schema`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click

from keras_transformer.cli.parameters import complete_recipe, run_argument
from keras_transformer.cli.terminal import render
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import find_recipe, load_recipe, recipe_files
from keras_transformer.recipe.settings import Recipe, all_keys
from keras_transformer.runs.info import run_info


@click.command("info")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def info_command(run: Path, as_json: bool) -> None:
    """Show what RUN is, its progress and its scores.

    It also shows what can be done next. The command reads files, but does not load the model.

    \b
    keras-transformer info runs/quickstart
    keras-transformer info runs/quickstart --json
    """
    info = run_info(run)
    if as_json:  # JSON has no infinite numbers and no NaN.
        finite = json.loads(json.dumps(info), parse_constant=lambda _: None)
        click.echo(json.dumps(finite, indent=2))
    else:
        click.echo(render("info.txt", **info), nl=False)


@click.command("recipes")
@click.argument("name", required=False, shell_complete=complete_recipe)
def recipes_command(name: str | None) -> None:
    """List the recipes, or print the recipe NAME as YAML.

    The list has the recipes of this package and of the folder ./recipes, with the scores and
    training times that they state.

    \b
    keras-transformer recipes
    keras-transformer recipes quickstart
    keras-transformer recipes quickstart > my_recipe.yaml
    """
    if name is not None:
        load_recipe(name)  # refuses a file that is no recipe
        click.echo(find_recipe(name).read_bytes(), nl=False)
        return
    formatter = click.HelpFormatter(max_width=100)
    for recipe, path in recipe_files().items():
        with formatter.section(recipe):
            formatter.write_dl(list(_facts(path)))
    click.echo(formatter.getvalue().strip("\n"))


def _facts(path: Path) -> Iterator[tuple[str, str]]:
    """Yields labels and texts about a recipe."""
    from keras_transformer.models import ARCHITECTURES

    try:
        recipe = load_recipe(path, is_of_run=True)
        model, training, sizes = recipe.model, recipe.training, recipe.model.overrides
        if model.architecture in ARCHITECTURES:  # A program may register others.
            model.check()
            sizes = model.sizes
    except (UserError, ValueError) as error:
        yield "problem", str(error)
        return
    named = {"num_layers": "{} layers", "d_model": "d_model {}"}
    model_sizes = [text.format(sizes[key]) for key, text in named.items() if key in sizes]
    yield "description", recipe.description
    yield (
        "size",
        f"{', '.join([model.architecture, *model_sizes])}, "
        f"{recipe.tokenizer.vocabulary_size:,} pieces; {training.steps:,} steps of "
        f"{training.tokens_per_batch * training.accumulation_steps:,} target tokens",
    )
    comments = re.sub(r"\n# {5,}", " ", path.read_text("utf-8"))  # joins continued lines
    yield from re.findall(r"^# (hardware|time|score): +(.*)$", comments, re.MULTILINE)


@click.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Write the JSON schema, for editors.")
def schema_command(as_json: bool) -> None:
    """List the keys of a recipe: type, range, default and meaning.

    \b
    keras-transformer schema
    keras-transformer schema | grep -A1 training.steps
    keras-transformer schema --json > recipe.schema.json
    """
    if as_json:
        click.echo(json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False))
        return
    for key in all_keys():
        default = f"; default: {key.default}" if key.default not in ("", "required") else ""
        required = "; required" if key.default == "required" else ""
        click.echo(f"{key.name}: {key.value}{default}{required}")
        meaning = key.meaning + " May change on resume." * key.may_change
        click.echo(click.wrap_text(meaning, 80, "    ", "    "))
