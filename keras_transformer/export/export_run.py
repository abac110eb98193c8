"""The model of a run in another format, compared by sentences of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.export.checks import check_is_free, run_sentences
from keras_transformer.run import Run

Format = Literal["saved_model", "ctranslate2", "onnx"]

# How many sentences of the run an export is compared by.
SENTENCES = 32


class Exported(NamedTuple):
    """What was written.

    Attributes:
        directory: Where.
        comparison: How it compares with the model, in words; of a SavedModel also what a server
            must have to run it.
    """

    directory: Path
    comparison: str


def export_run(
    run: Run,
    format: Format,
    output: str | Path | None = None,
    quantization: str | None = None,
    **search: Any,
) -> Exported:
    """Writes the model of a run in another format, and compares the two.

    Args:
        run: A run that has a model.
        format: `"saved_model"`, `"ctranslate2"` or `"onnx"`; see `export_saved_model`,
            `export_ctranslate2` and `export_onnx`.
        output: A new or empty folder, or, for a SavedModel, that of the model's versions. Defaults
            to None: `saved_models/<run>`; for the others the format's name in the run folder, with
            the quantization, as in `runs/quickstart/onnx-int8`.
        quantization: Type of the weights for `"ctranslate2"` and `"onnx"`, which know different
            ones. Defaults to None: float32.
        **search: Fields of `SearchOptions` that replace the recipe's, for `"saved_model"`;
            `"onnx"` takes `beam_size` and `length_penalty`.

    Returns:
        Where it is, and how it compares.

    Raises:
        UserError: If the format cannot hold the model, does not take an option, is not installed,
            or gives other results than the model; or the folder is not empty, or the disk full.
            Nothing is left behind.
    """
    given = search if quantization is None else {"quantization": quantization, **search}
    export, taken = _EXPORTERS[format]
    if refused := given.keys() - taken:
        raise UserError(
            f"{format} takes {', '.join(taken)} and not {', '.join(sorted(refused))}: that is a "
            "matter of each translation, or of another format"
        )
    try:
        return export(run, output, **given)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error


def _export_saved_model(run: Run, output: str | Path | None, **search: Any) -> Exported:
    from keras_transformer.export.saved_model import export_run_saved_model

    options = run.recipe.evaluation.search_options(**search)
    exported = export_run_saved_model(run.directory, output, options)
    return Exported(
        exported.directory,
        f"{exported.compared} translations are the model's, their scores within "
        f"{exported.largest_difference:.1g} nats\n"
        f"min_consumer {exported.min_consumer}; operations: {' '.join(exported.operations)}",
    )


def _export_ctranslate2(
    run: Run, output: str | Path | None, quantization: str = "float32"
) -> Exported:
    from keras_transformer.export.ctranslate2 import export_ctranslate2

    directory = _free_directory(run, output, "ctranslate2", quantization)
    tokenizer = run.tokenizer()
    sentences = run_sentences(run, SENTENCES)
    share = export_ctranslate2(run.model(), tokenizer, directory, quantization, sentences)
    return Exported(directory, f"{share:.1%} of {len(sentences)} translations are the model's")


def _export_onnx(
    run: Run, output: str | Path | None, quantization: Any = "float32", **search: Any
) -> Exported:
    from keras_transformer.export.onnx import export_onnx

    directory = _free_directory(run, output, "onnx", quantization)
    settings, tokenizer = run.recipe.evaluation, run.tokenizer()
    recipes = {"beam_size": settings.beam_size, "length_penalty": settings.length_penalty}
    share = export_onnx(
        run.model(),
        tokenizer,
        directory,
        quantization,
        run_sentences(run, SENTENCES),
        **{**recipes, **search},
    )
    return Exported(directory, f"{share:.1%} of the next tokens are the model's")


# The function, and which options it takes.
_EXPORTERS: dict[str, tuple[Callable[..., Exported], tuple[str, ...]]] = {
    "saved_model": (_export_saved_model, tuple(SearchOptions.model_fields)),
    "ctranslate2": (_export_ctranslate2, ("quantization",)),
    "onnx": (_export_onnx, ("quantization", "beam_size", "length_penalty")),
}


def _free_directory(run: Run, output: str | Path | None, format: str, quantization: str) -> Path:
    name = format if quantization == "float32" else f"{format}-{quantization}"
    directory = run.directory / name if output is None else Path(output)
    check_is_free(directory)
    return directory
