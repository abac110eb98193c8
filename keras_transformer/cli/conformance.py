"""The command `conformance`."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from keras_transformer.cli.parameters import run_argument
from keras_transformer.errors import UserError
from keras_transformer.runs.run import opened_runs


@click.command("conformance")
@run_argument
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Python module that defines custom classes of the model. The module may be in the current "
    "folder. Repeatable.",
)
def conformance_command(run: Path, imports: Sequence[str]) -> None:
    """Compare RUN's model on all installed backends.

    RUN is a run folder or the .keras file of any functional Keras model. The command compares
    outputs, gradients, a training step, search and saved files on random inputs. For each pair of
    backends, it prints the largest difference, and the largest that rounding errors can explain. If
    backends differ, it prints the first layer whose outputs differ, and exits with status 1.

    \b
    keras-transformer conformance runs/quickstart
    keras-transformer conformance my_model.keras --import my_layers
    """
    sys.path.insert(0, os.getcwd())
    for module in imports:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}"
            raise UserError(f"--import {module!r} fails: {text}") from error
    from keras_transformer.portability import conformance
    from keras_transformer.runs.loading import load_model
    from keras_transformer.translation.open_run import open_model

    model = load_model(run) if run.suffix == ".keras" else open_model(opened_runs(run)[0])
    result = conformance(model, imports=imports)
    click.echo(result)
    if not result.conforms:
        raise click.exceptions.Exit(1)
