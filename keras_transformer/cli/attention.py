"""The command `attention`."""

from pathlib import Path
from typing import Any

import click

from keras_transformer._files import output_path
from keras_transformer.cli.common import (
    backend_option,
    checkpoint_option,
    run_argument,
)
from keras_transformer.errors import UserError
from keras_transformer.translation.open_run import open_translator


@click.command("attention")
@run_argument
@click.argument("sentence")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("attention.html"),
    help="Output file, .html, .svg or .png. Default: attention.html in the current folder.",
)
@click.option(
    "--target",
    metavar="TRANSLATION",
    help="Show the attention for this translation. Default: the translation by the model.",
)
@click.option(
    "--kind",
    type=click.Choice(["encoder", "decoder", "cross"]),
    help="Attention in a picture: self-attention of the encoder or decoder, or cross-attention. "
    "Default: all for a picture of all heads, cross for a picture of one head.",
)
@click.option(
    "--layer", type=click.IntRange(min=1), help="Layer in a picture, from 1. Default: all."
)
@click.option("--head", type=click.IntRange(min=1), help="Head in a picture, from 1. Default: all.")
@checkpoint_option
@backend_option
def command(
    run: Path, sentence: str, output: Path, target: str | None, checkpoint: Any, **shown: Any
) -> None:
    """Show the attention of RUN in SENTENCE and its translation.

    An HTML file contains the attention weights of all layers and heads. Open it with a browser, and
    choose there what is shown. It needs no other file and no network. SVG and PNG files are
    pictures: small heat maps of all heads, or the heat map of one head with --layer and --head. A
    PNG file needs the package resvg_py.

    \b
    keras-transformer attention tatoeba_en_de "The dog sleeps."
    keras-transformer attention runs/a "The dog sleeps." --target "Der Hund schläft." --output a.svg
    keras-transformer attention runs/a "The dog sleeps." --layer 2 --head 3 --output head.png
    """
    suffix = output.suffix.lower()
    if suffix not in (".html", ".svg", ".png"):
        raise UserError(f"--output must end in .html, .svg or .png. Received: {output}")
    given = [f"--{name}" for name, value in shown.items() if value is not None]
    if suffix == ".html" and given:
        raise UserError(f"{given[0]} is for .svg and .png files: choose it in the HTML page")
    from keras_transformer.runs.run import Run
    from keras_transformer.visualization.attention_example import translation_attention
    from keras_transformer.visualization.attention_html import attention_page
    from keras_transformer.visualization.attention_picture import (
        attention_svg,
        check_png,
        png_from_svg,
    )

    if suffix == ".png":
        check_png()
    with output_path(output) as partial:
        translator = open_translator(Run.open(run), checkpoint=checkpoint)
        example = translation_attention(translator, sentence, target)
        text = attention_page(example) if suffix == ".html" else attention_svg(example, **shown)
        partial.write_bytes(png_from_svg(text) if suffix == ".png" else text.encode())
    click.echo(str(output))
