"""The commands that draw: `attention`, `beam` and `report`."""

from pathlib import Path
from typing import Annotated, Literal

import click
from pydantic import Field

from keras_transformer._files import output_bytes, output_file
from keras_transformer.cli import parameters
from keras_transformer.cli.parameters import Given, checked
from keras_transformer.errors import UserError
from keras_transformer.formats.engines import open_translator
from keras_transformer.runs.run import opened_runs


class _AttentionOptions(parameters.CheckpointOptions):
    output: Annotated[Path, click.Path(path_type=Path, dir_okay=False)] = Path("attention.html")
    """Output file, .html, .svg or .png. Default: attention.html in the current folder."""
    target: str | None = Field(None, title="TRANSLATION")
    """Show the attention for this translation. Default: the translation by the model."""
    kind: Literal["encoder", "decoder", "cross"] | None = None
    """Attention in a picture: self-attention of the encoder or decoder, or cross-attention.
    Default: all for a picture of all layers, cross for a picture of one layer."""
    layer: int | None = Field(None, ge=1)
    """Layer in a picture, from 1. Default: all."""
    head: int | None = Field(None, ge=1)
    """Head of the layer, from 1. Default: all."""


@click.command("attention")
@parameters.run_argument
@click.argument("sentence")
@parameters.options_of(_AttentionOptions)
@parameters.backend_option
def attention_command(run: Path, sentence: str, options: _AttentionOptions) -> None:
    """Show the attention of RUN in SENTENCE and its translation.

    An HTML file contains the attention weights of all layers and heads. Open it with a browser, and
    choose there what is shown. It needs no other file and no network. SVG and PNG files are
    pictures: small heat maps of all layers and heads, or with --layer, and perhaps --head, large
    ones with their tokens. A PNG file needs the package resvg_py.

    \b
    keras-transformer attention tatoeba_en_de "The dog sleeps."
    keras-transformer attention runs/a "The dog sleeps." --target "Der Hund schläft." --output a.svg
    keras-transformer attention runs/a "The dog sleeps." --layer 2 --head 3 --output head.png
    """
    output, suffix = options.output, options.output.suffix.lower()
    if suffix not in (".html", ".svg", ".png"):
        raise UserError(f"--output must end in .html, .svg or .png. Received: {output}")
    shown = options.model_dump(include={"kind", "layer", "head"}, exclude_none=True)
    if suffix == ".html" and shown:
        raise UserError(f"--{[*shown][0]} is for .svg and .png files: choose it in the HTML page")
    from keras_transformer.visualization import attention_pages as pages, translation_attention

    if suffix == ".png":
        pages.resvg()
    with output_bytes(output) as file:
        translator = checked(open_translator, run, checkpoint=options.checkpoint)
        example = translation_attention(translator, sentence, options.target)
        is_page = suffix == ".html"
        text = pages.attention_page(example) if is_page else pages.attention_svg(example, **shown)
        file.write(pages.png_from_svg(text) if suffix == ".png" else text.encode())
    click.echo(str(output))


class _BeamOptions(parameters.CheckpointOptions):
    output: Path = Path("beam.html")
    """The HTML file. The file is written only if the command succeeds."""


@click.command("beam")
@parameters.run_argument
@click.argument("sentence")
@parameters.options_of(_BeamOptions)
@parameters.search_options
@parameters.backend_option
def beam_command(run: Path, sentence: str, options: _BeamOptions, search: Given) -> None:
    """Show the beam search of RUN for SENTENCE as an HTML page.

    The page has the tree of hypotheses with their scores, and says when each hypothesis ended and
    why it lost.

    \b
    keras-transformer beam runs/quickstart "twenty-six"
    keras-transformer beam runs/multi30k_en_de "A man sleeps." --beam-size 8 --output beam8.html
    """
    (opened,) = opened_runs(run)
    found = checked(opened.recipe.evaluation.search_options, **search)
    with output_file(options.output) as file:
        from keras_transformer.translation.beam_tree import beam_page

        translator = checked(open_translator, opened, found, checkpoint=options.checkpoint)
        file.write(beam_page(translator.beam_tree(sentence)))
    click.echo(str(options.output))


@click.command("report")
@parameters.run_argument
@click.argument("other", metavar="[OTHER_RUN]", type=parameters.any_path, required=False)
@click.option(
    "--output",
    type=parameters.any_path,
    help="The HTML file. Default: report.html in the current folder. The file is written only if "
    "the command succeeds.",
    default=Path("report.html"),
)
@parameters.backend_option
def report_command(run: Path, other: Path | None, output: Path) -> None:
    """Write one HTML page about RUN.

    With OTHER_RUN, the page is about the difference between the two runs. The page has the recipe,
    curves, scores, the best and worst sentences, and attention. It opens from a file, without a
    network. What RUN lacks is named there, with the command that makes it.

    \b
    keras-transformer report runs/quickstart
    keras-transformer report runs/a runs/b --output difference.html
    """
    from keras_transformer.visualization.report import run_report

    runs = opened_runs([folder for folder in (run, other) if folder is not None])
    with output_file(output) as file:
        file.write(run_report(*runs))
    click.echo(str(output))
