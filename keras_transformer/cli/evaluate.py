"""The command `evaluate`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer.cli.common import run_argument
from keras_transformer.cli.search_options import search_options


@click.command("evaluate")
@run_argument
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Which text of the recipe to translate.",
)
@search_options
def command(run: Path, **arguments: Any) -> None:
    """Compute BLEU and chrF of the model of RUN with sacrebleu, and append them to RUN/scores.json.

    \b
    keras-transformer evaluate runs/quickstart
    keras-transformer evaluate runs/multi30k_en_de --split validation --beam-size 5
    """
    from keras_transformer.evaluation.scores import evaluate_run
    from keras_transformer.run import Run

    for score in evaluate_run(Run.open(run), **arguments):
        click.echo(f"{score.metric}\t{score.score:.2f}\t{score.signature}")
