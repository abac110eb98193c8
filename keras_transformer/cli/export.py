"""The command `export`."""

from pathlib import Path

import click

from keras_transformer.cli.common import (
    backend_option,
    checkpoint_option,
    run_argument,
    shortlist_option,
)
from keras_transformer.cli.search_options import Given, best_search_options, checked
from keras_transformer.export.run_export import QUANTIZATIONS, ExportOptions, export_run
from keras_transformer.runs.run import Checkpoint, Run


@click.command("export")
@run_argument
@click.option(
    "--format",
    required=True,
    type=click.Choice(["saved_model", "ctranslate2", "onnx", "run"]),
    help="Format to write.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write. The format saved_model writes a folder for each version in it, such as "
    "FOLDER/1. Default for saved_model: exports/NAME, where NAME is the name of the run "
    "folder. Default otherwise: exports/NAME/FORMAT, or exports/NAME/FORMAT-TYPE with "
    "--quantization TYPE.",
)
@click.option(
    "--quantization",
    metavar="TYPE",
    default="float32",
    help="Data type of the weights. "
    + "".join(f"{x}: {', '.join(y)}. " for x, y in QUANTIZATIONS.items())
    + "Default: float32.",
)
@shortlist_option
@checkpoint_option
@best_search_options
@backend_option
def command(
    run: Path,
    format: str,
    output: Path | None,
    quantization: str | None,
    shortlist: bool,
    checkpoint: Checkpoint | None,
    search: Given,
) -> None:
    """Export the model of RUN.

    The format saved_model is for TensorFlow Serving. The exported model takes and returns strings.
    Each export is a new version of the model. The format ctranslate2 is for ctranslate2.Translator.
    The format onnx contains the encoder and one step of the decoder. It also contains translate.py,
    a beam search that needs only NumPy, onnxruntime and sentencepiece. The format run is a small
    run folder for other users: recipe, tokenizer, model, validation and test text.

    The command translates some sentences of the run with the export and with the model, and
    compares the results. If the results of a float32 export differ, the command fails and writes no
    export. Search options become the defaults of the export. The format saved_model supports all
    search options and --shortlist. The format onnx supports only the beam size, the length penalty
    and the maximum length. If the recipe has other search options, set them to their defaults. The
    formats ctranslate2 and run support no search options.

    \b
    keras-transformer export runs/quickstart --format saved_model
    keras-transformer export runs/quickstart --format ctranslate2 --quantization int8
    keras-transformer export runs/quickstart --format onnx
    keras-transformer export runs/quickstart --format run --quantization float16
    echo "twenty-six" | python exports/quickstart/onnx/translate.py
    """
    opened = Run.open(run)
    options = checked(
        ExportOptions,
        format=format,
        output=output,
        quantization=quantization,
        shortlist=shortlist,
        checkpoint=checkpoint,
        search=checked(opened.recipe.evaluation.search_options, **search) if search else None,
    )
    exported = export_run(opened, options)
    click.echo(f"{exported.directory}: {exported.comparison}")
