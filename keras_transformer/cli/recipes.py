"""The command `recipes`."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from keras_transformer.cli.common import complete_recipe
from keras_transformer.errors import UserError


@click.command("recipes")
@click.argument("name", required=False, shell_complete=complete_recipe)
def command(name: str | None) -> None:
    """List the recipes, or print the recipe NAME as YAML.

    The list has the recipes of this package and of the folder ./recipes, with the scores and
    training times that they state.

    \b
    keras-transformer recipes
    keras-transformer recipes quickstart
    keras-transformer recipes quickstart > my_recipe.yaml
    """
    from keras_transformer.recipe.files import find_recipe, load_recipe, recipe_files

    if name is not None:
        load_recipe(name)  # refuses a file that is no recipe
        click.echo(find_recipe(name).read_bytes(), nl=False)
        return
    formatter = click.HelpFormatter(max_width=100)
    for recipe, path in recipe_files().items():
        with formatter.section(recipe):
            formatter.write_dl(list(_rows(path)))
    click.echo(formatter.getvalue().strip("\n"))


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yields labels and texts about a recipe."""
    from keras_transformer.recipe.files import load_recipe

    try:
        recipe = load_recipe(path)
    except UserError as error:
        yield "problem", str(error)
        return
    sizes, training = recipe.model.sizes, recipe.training
    layers = f"{sizes['num_layers']} layers, " if "num_layers" in sizes else ""
    yield "description", recipe.description
    yield (
        "size",
        f"{recipe.model.architecture}, {layers}d_model {sizes['d_model']}, "
        f"{recipe.tokenizer.vocabulary_size:,} pieces; {training.steps:,} steps of "
        f"{training.tokens_per_batch * training.accumulation_steps:,} target tokens",
    )
    comments = re.sub(r"\n# {5,}", " ", path.read_text("utf-8"))  # joins continued lines
    for label in ("hardware", "time", "score"):
        if stated := re.search(rf"^# {label}: +(.*)$", comments, re.MULTILINE):
            yield label, stated[1]
