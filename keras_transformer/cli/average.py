"""The command `average`."""

from pathlib import Path

import click

from keras_transformer.cli.common import backend_option, run_argument
from keras_transformer.errors import UserError


@click.command("average")
@run_argument
@click.option(
    "--last", type=click.IntRange(min=1), required=True, help="Number of checkpoints to average."
)
@backend_option
def command(run: Path, last: int) -> None:
    """Average the last checkpoints of RUN.

    The average of their weights replaces the weights of RUN/model.keras. The previous model is
    copied to RUN/model.previous.keras.

    \b
    keras-transformer average runs/quickstart --last 3
    """
    from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, read_member
    from keras_transformer.runs.run import Run
    from keras_transformer.training.train_run import write_average

    opened = Run.open(run)
    paths = opened.checkpoints()[-last:]
    if len(paths) < last:
        raise UserError(f"{run} has only {len(paths)} checkpoints. Received: --last {last}")
    click.echo("Averaging checkpoints.", err=True)
    fingerprint = read_member(opened.model_path, TOKENIZER_MEMBER)
    write_average(opened, paths, fingerprint or opened.tokenizer().fingerprint)
    names = ", ".join(path.name for path in paths)
    click.echo(f"{opened.model_path} is now the average of {names}")
