"""The command `train`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import keras

from keras_transformer.cli.common import backend_option, recipe_argument, run_folder, set_option
from keras_transformer.cli.memory import keep_freed_memory
from keras_transformer.cli.signals import StopAfterStep, exit_status
from keras_transformer.errors import UserError
from keras_transformer.models.seq2seq import command_line
from keras_transformer.recipe.files import load_recipe
from keras_transformer.training import train
from keras_transformer.training.distribution import start
from keras_transformer_cli import installed_backends


@click.command("train")
@recipe_argument
@click.option(
    "--run",
    "directory",
    type=run_folder,
    help="Run folder to create. Default: runs/NAME, where NAME is the name of the recipe.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Folder that contains the recipe's text files. With this option, nothing is downloaded.",
)
@set_option
@click.option("--resume", is_flag=True, help="Continue a run. RECIPE can be the run folder.")
@backend_option
def command(
    recipe: str,
    directory: Path | None,
    data_dir: Path | None,
    overrides: Sequence[str],
    resume: bool,
) -> None:
    """Train a model from RECIPE.

    RECIPE is a YAML file, or the name of a recipe in this package. With --resume, RECIPE can also
    be a run folder. Then the run continues with its own recipe and with the changes that --set and
    --data-dir make, such as more steps. Settings that would change the steps already done are
    refused.

    \b
    keras-transformer train quickstart
    keras-transformer train multi30k_en_de --data-dir ~/multi30k --run runs/first
    keras-transformer train quickstart --set training.steps=500 --set data.target_language=ko
    keras-transformer train runs/quickstart --resume
    keras-transformer train runs/quickstart --resume --set training.steps=4000
    """
    if data_dir:
        overrides = [*overrides, f"data.directory={json.dumps(str(data_dir))}"]
    if (Path(recipe) / "recipe.yaml").is_file():
        directory = _resumed_run(Path(recipe), directory, resume)
    loaded = load_recipe(recipe, overrides)
    program = command_line(loaded.model.architecture)
    directory = directory or Path("runs") / loaded.name
    if resume and not (directory / "recipe.yaml").is_file():
        raise UserError(f"{directory} holds no run to continue. To start one, omit --resume")
    keep_freed_memory()
    distribution = start(loaded)
    opened = distribution.open_run(directory, loaded, resume)
    try:
        # Other processes would wait for this one.
        callbacks = [StopAfterStep()] if loaded.training.distribution == "none" else []
        train(opened, resume=resume, callbacks=callbacks, distribution=distribution)
    except KeyboardInterrupt as interrupt:
        is_saved = load_recipe(opened.recipe_path) == loaded
        options = [] if is_saved else [word for x in overrides for word in ("--set", x)]
        words, paths = ["train", str(directory), "--resume", *options], opened.checkpoints()
        if len(installed_backends()) > 1:
            words += ["--backend", keras.config.backend()]
        kept = f"the last checkpoint is {paths[-1].name}" if paths else "there is no checkpoint yet"
        click.echo(f"\nStopped; {kept}. Continue with: {program} {shlex.join(words)}", err=True)
        raise click.exceptions.Exit(exit_status(interrupt)) from None
    if distribution.is_chief:
        for name in ("translate", "evaluate", "info"):
            click.echo(f"next: {program} {shlex.join([name, str(directory)])}")


def _resumed_run(folder: Path, run: Path | None, resume: bool) -> Path:
    """Returns the run folder `folder`. Raises `UserError` if the options do not resume it."""
    if not resume or (run is not None and run.resolve() != folder.resolve()):
        name = shlex.quote(str(folder))
        if resume:
            raise UserError(f"--run must be {folder}, the run to continue, or be omitted")
        raise UserError(
            f"{folder} is a run folder. To continue this run: keras-transformer train {name} "
            f"--resume. To start another run with its recipe: keras-transformer train "
            f"{shlex.quote(str(folder / 'recipe.yaml'))} --run NEW_FOLDER"
        )
    return folder
