"""The command `train`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from keras_transformer.cli.common import backend_option, recipe_argument, run_folder, set_option


@click.command("train")
@recipe_argument
@click.option(
    "--run",
    type=run_folder,
    help="Run folder to create. Default: runs/NAME, where NAME is the name of the recipe.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Folder that contains the recipe's text files. With this option, nothing is downloaded.",
)
@set_option
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@backend_option
def command(
    recipe: str, run: Path | None, data_dir: Path | None, settings: Sequence[str], resume: bool
) -> None:
    """Train a model from RECIPE.

    RECIPE is a YAML file, or the name of a recipe in this package.

    \b
    keras-transformer train quickstart
    keras-transformer train multi30k_en_de --data-dir ~/multi30k --run runs/first
    keras-transformer train quickstart --set training.steps=500 --set data.target_language=ko
    keras-transformer train quickstart --resume
    """
    from keras_transformer.recipe import load_recipe
    from keras_transformer.training import train
    from keras_transformer.training.distribution import start

    if data_dir:
        settings = [*settings, f"data.directory={json.dumps(str(data_dir))}"]
    loaded = load_recipe(recipe, settings)
    directory = run or Path("runs") / loaded.name
    opened = start(loaded).open_run(directory, loaded, resume)
    try:
        train(opened, resume=resume)
    except KeyboardInterrupt:
        options = [word for setting in settings for word in ("--set", setting)]
        words = ["train", recipe, "--run", str(directory), *options, "--resume"]
        click.echo(f"\nStopped. Continue with: keras-transformer {shlex.join(words)}", err=True)
        raise click.exceptions.Exit(130) from None
    except Exception:
        opened.discard()
        raise
