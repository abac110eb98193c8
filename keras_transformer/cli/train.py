"""The commands `train`, `budget` and `average`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from pydantic import Field

from keras_transformer._backend import installed_backends
from keras_transformer.architectures import command_line
from keras_transformer.cli import parameters
from keras_transformer.cli.process import keep_freed_memory, stop_after_step
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe
from keras_transformer.runs.run import Run

if TYPE_CHECKING:
    from keras_transformer.training.run.token_budget import Try

_DATA_DIR = click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)


class _TrainOptions(parameters.RecipeOptions):
    run: Path | None = None
    """Run folder to create. Default: runs/NAME, where NAME is the name of the recipe."""
    data_dir: Annotated[Path | None, _DATA_DIR] = None
    """Folder that contains the recipe's text files. With this option, nothing is downloaded."""
    resume: bool = False
    """Continue a run. RECIPE can be the run folder."""


@click.command("train")
@parameters.recipe_argument
@parameters.options_of(_TrainOptions)
@parameters.backend_option
def train_command(recipe: str, options: _TrainOptions) -> None:
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
    import keras

    from keras_transformer.training import train
    from keras_transformer.training.run.train import open_run, start

    resume, directory, overrides = options.resume, options.run, [*options.set]
    if options.data_dir:
        overrides.append(f"data.directory={json.dumps(str(options.data_dir))}")
    if (Path(recipe) / "recipe.yaml").is_file():
        directory = _resumed_run(Path(recipe), directory, resume)
    loaded = load_recipe(recipe, overrides)
    program = command_line(loaded.model.architecture)
    directory = directory or Path("runs") / loaded.name
    keep_freed_memory()
    distribution = start(loaded)
    opened = open_run(distribution, directory, loaded, resume)
    try:
        # Other processes would wait for this one.
        callbacks = [stop_after_step()] if loaded.training.distribution == "none" else []
        train(opened, resume=resume, callbacks=callbacks, distribution=distribution)
    except KeyboardInterrupt:
        is_saved = load_recipe(opened.recipe_path) == loaded
        changes = [] if is_saved else [word for x in overrides for word in ("--set", x)]
        words, paths = ["train", str(directory), "--resume", *changes], opened.checkpoints()
        if len(installed_backends()) > 1:
            words += ["--backend", keras.config.backend()]
        kept = f"the last checkpoint is {paths[-1].name}" if paths else "there is no checkpoint yet"
        click.echo(f"\nStopped; {kept}. Continue with: {program} {shlex.join(words)}", err=True)
        raise
    if distribution.is_chief:
        for name in loaded.task.commands:
            click.echo(f"next: {program} {shlex.join([name, str(directory)])}")


def _resumed_run(folder: Path, run: Path | None, resume: bool) -> Path:
    """Returns the run folder `folder`. Raises `UserError` if the options do not resume it."""
    if not resume:
        raise UserError(
            f"{folder} is a run folder. To continue this run: keras-transformer train "
            f"{shlex.quote(str(folder))} --resume. To start another run with its recipe: "
            f"keras-transformer train {shlex.quote(str(folder / 'recipe.yaml'))} --run NEW_FOLDER"
        )
    if run is not None and run.resolve() != folder.resolve():
        raise UserError(f"--run must be {folder}, the run to continue, or be omitted")
    return folder


class _BudgetOptions(parameters.RecipeOptions):
    memory: float | None = Field(None, gt=0)
    """Memory limit in GiB for training on a CPU. Default: the available memory. On a GPU, the limit
    is always the memory of the GPU."""


@click.command("budget")
@parameters.recipe_argument
@parameters.options_of(_BudgetOptions)
@parameters.backend_option
def budget_command(recipe: str, options: _BudgetOptions) -> None:
    """Find the largest batch of RECIPE that fits into memory.

    The result is a value for training.tokens_per_batch. The command tests each value in a new
    process, with training steps on random sentences of the maximum length. It needs no text files.
    With several devices, the result is for one device. B x S x T in the table is the shape of the
    batch: number of sentences, source tokens and target tokens of each.

    \b
    keras-transformer budget wmt14_en_de_base
    keras-transformer budget wmt14_en_de_big --memory 12 --set training.gradient_checkpointing=true
    """
    from keras_transformer.training.run.token_budget import available_mebibytes, find_token_budget

    keep_freed_memory()
    loaded = load_recipe(recipe, options.set)
    limit = options.memory * 1024 if options.memory else available_mebibytes()
    click.echo(f"{'tokens':>10}{'B x S x T':>18}{'peak MiB':>10}{'s per step':>12}{'tokens/s':>12}")
    best = find_token_budget(loaded, limit, _show_try)
    click.echo(
        f"largest that fits into {limit:,.0f} MiB: --set training.tokens_per_batch={best.tokens}"
    )
    total = loaded.training.tokens_per_batch * loaded.training.accumulation_steps
    count = -(-total // best.tokens)
    click.echo(
        f"for the recipe's {total:,} tokens per optimizer step: --set "
        f"training.tokens_per_batch={-(-total // count)} --set training.accumulation_steps={count}"
    )


def _show_try(tried: "Try") -> None:
    shape, figures = " x ".join(map(str, tried.shape)), f"{'too much':>10}"
    if tried.mebibytes is not None and tried.seconds is not None:
        figures = f"{tried.mebibytes:>10,.0f}{tried.seconds:>12.2f}{tried.tokens_per_s:>12,.0f}"
    click.echo(f"{tried.tokens:>10,}{shape:>18}{figures}")


@click.command("average")
@parameters.run_argument
@click.option(
    "--last", type=click.IntRange(min=1), required=True, help="Number of checkpoints to average."
)
@parameters.backend_option
def average_command(run: Path, last: int) -> None:
    """Average the last checkpoints of RUN.

    The average of their weights replaces the weights of RUN/model.keras. The previous model is
    copied to RUN/model.previous.keras.

    \b
    keras-transformer average runs/quickstart --last 3
    """
    from keras_transformer.training.run.finish import write_average

    opened = Run.open(run)
    paths = opened.checkpoints()[-last:]
    if len(paths) < last:
        raise UserError(f"{run} has only {len(paths)} checkpoints. Received: --last {last}")
    click.echo("Averaging checkpoints.", err=True)
    write_average(opened, paths)
    names = ", ".join(path.name for path in paths)
    click.echo(f"{opened.model_path} is now the average of {names}")
