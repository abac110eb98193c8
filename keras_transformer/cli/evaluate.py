"""The command `evaluate`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer.cli.common import (
    backend_option,
    batch_tokens_option,
    checkpoint_option,
    engine_option,
    run_argument,
    shortlist_option,
)
from keras_transformer.cli.search_options import best_search_options, checked, take_options


@click.command("evaluate")
@run_argument
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    help="Which split of the recipe's text to translate.",
)
@engine_option
@shortlist_option
@checkpoint_option
@best_search_options
@batch_tokens_option
@backend_option
def command(run: Path, **arguments: Any) -> None:
    """Compute BLEU and chrF of RUN's model with sacrebleu, and append them to RUN/scores.json.

    \b
    keras-transformer evaluate runs/quickstart
    keras-transformer evaluate runs/multi30k_en_de --split validation --beam-size 5
    """
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.evaluation.scores import evaluate_run
    from keras_transformer.run import Run

    opened = Run.open(run)
    given = take_options(arguments, SearchOptions)
    options = checked(opened.recipe.evaluation.search_options, **given)
    use_shortlist = arguments.pop("shortlist")
    for score in evaluate_run(opened, options=options, use_shortlist=use_shortlist, **arguments):
        click.echo(f"{score.metric}\t{score.score:.2f}\t{score.signature}")
