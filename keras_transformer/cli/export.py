"""The commands `export` and `push`."""

from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from keras_transformer.cli import parameters
from keras_transformer.cli.parameters import Given, checked
from keras_transformer.formats.export_options import ExportOptions
from keras_transformer.runs.run import Run


class FormatOptions(parameters.ShortlistOptions, ExportOptions):
    """The options of `export`, but for those of search."""


@click.command("export")
@parameters.run_argument
@parameters.options_of(FormatOptions, without={"search"})
@parameters.best_search_options
@parameters.backend_option
def export_command(run: Path, options: FormatOptions, search: Given) -> None:
    """Export the model of RUN.

    The format saved_model is for TensorFlow Serving. The exported model takes and returns strings.
    Each export is a new version of the model. The format ctranslate2 is for ctranslate2.Translator.
    The format onnx contains the encoder and one step of the decoder. It also contains translate.py,
    a beam search that needs only NumPy, onnxruntime and sentencepiece. The format web is a page
    that translates in the browser, from any server for static files. The format hugging_face is for
    AutoTokenizer and AutoModelForSeq2SeqLM of transformers. The format run is a small run folder
    for other users: recipe, tokenizer, model, validation and test text.

    The command translates some sentences of the run with the export and with the model, and
    compares the results. If the results of a float32 export differ, the command fails and writes no
    export. Search options become the defaults of the export. The format saved_model supports all
    search options and --shortlist. The formats onnx and web support only the beam size, the length
    penalty and its form, and the maximum length, hugging_face only the beam size and the length
    penalty (0, or of the form power). If the recipe has other search options, set them to their
    defaults. The formats ctranslate2 and run support no search options.

    \b
    keras-transformer export runs/quickstart --format saved_model
    keras-transformer export runs/quickstart --format ctranslate2 --quantization int8
    keras-transformer export runs/quickstart --format onnx
    keras-transformer export runs/quickstart --format web
    keras-transformer export runs/quickstart --format hugging_face --length-penalty 0
    keras-transformer export runs/quickstart --format run --quantization float16
    echo "twenty-six" | python exports/quickstart/onnx/translate.py
    """
    from keras_transformer.formats.run_export import export_run

    opened = Run.open(run)
    found = checked(opened.recipe.evaluation.search_options, **search) if search else None
    exported = export_run(
        opened, checked(ExportOptions, **options.model_dump(exclude={"search"}), search=found)
    )
    click.echo(f"{exported.directory}: {exported.comparison}")


class PushOptions(parameters.Options):
    """The options of `push`."""

    format: Literal["hugging_face", "run"] = "hugging_face"
    """What to upload: the export for transformers, which `import` reads too, or the run."""
    private: bool = False
    """Make a new repository private."""
    licence: str | None = Field(None, title="NAME")
    """Licence on the model card, such as apache-2.0. Default: that of the imported model."""


@click.command("push")
@parameters.run_argument
@click.argument("name")
@parameters.options_of(PushOptions)
@parameters.best_search_options
@parameters.backend_option
def push_command(run: Path, name: str, options: PushOptions, search: Given) -> None:
    """Upload RUN to the Hugging Face hub as NAME, such as me/quickstart.

    The model card has the recipe and the scores of the run. Search options become the defaults of
    the export for transformers, which has no length penalty of the default form. Log in first, with
    `hf auth login` or the environment variable HF_TOKEN.

    \b
    keras-transformer push runs/quickstart me/quickstart --licence apache-2.0 --length-penalty 0
    """
    from keras_transformer.formats.hub import push_to_hub

    opened = Run.open(run)
    found = checked(opened.recipe.evaluation.search_options, **search) if search else None
    click.echo(checked(push_to_hub, opened, name, **options.model_dump(), search=found))
