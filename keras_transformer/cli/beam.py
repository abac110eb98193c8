"""The command `beam`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer._files import output_file
from keras_transformer.cli.common import (
    backend_option,
    checkpoint_option,
    run_argument,
)
from keras_transformer.cli.search_options import Given, checked, search_options
from keras_transformer.errors import UserError
from keras_transformer.translation.open_run import open_translator


@click.command("beam")
@run_argument
@click.argument("sentence")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("beam.html"),
    help="The HTML file. The file is written only if the command succeeds.",
)
@checkpoint_option
@search_options
@backend_option
def command(run: Path, sentence: str, output: Path, checkpoint: Any, search: Given) -> None:
    """Show the beam search of RUN for SENTENCE as an HTML page.

    The page has the tree of hypotheses with their scores, and says when each hypothesis ended and
    why it lost.

    \b
    keras-transformer beam runs/quickstart "twenty-six"
    keras-transformer beam runs/multi30k_en_de "A man sleeps." --beam-size 8 --output beam8.html
    """
    from keras_transformer.runs.run import Run

    opened = Run.open(run)
    options = checked(opened.recipe.evaluation.search_options, **search)
    with output_file(output) as file:
        from keras_transformer.visualization.beam import beam_page

        try:
            translator = open_translator(opened, options, checkpoint=checkpoint)
        except ValueError as error:
            raise UserError(str(error)) from None
        file.write(beam_page(translator.beam_tree(sentence)))
    click.echo(str(output))
