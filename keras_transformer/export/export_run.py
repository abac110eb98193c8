"""Exports the model of a run to SavedModel, CTranslate2 or ONNX, or the run to a small folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.export.source_model import check_is_free, run_sentences
from keras_transformer.run import Checkpoint, Run

Format = Literal["saved_model", "ctranslate2", "onnx", "run"]

_ONNX_SEARCH = ("beam_size", "length_penalty", "max_length")

SENTENCES = 32  # maximum number of sentences that export and model translate for the comparison


class Exported(NamedTuple):
    """Result of `export_run`. Contains the new folder and a text that compares export and model."""

    directory: Path
    comparison: str  # for a SavedModel, also the operations that the server must support


def export_run(
    run: Run,
    format: Format,
    output: str | Path | None = None,
    quantization: str | None = None,
    shortlist: bool = False,
    checkpoint: Checkpoint | None = None,
    **search: Any,
) -> Exported:
    """Exports the model of a run, and compares the export with the model.

    Args:
        run: A run that has a model, or a checkpoint.
        format: `"saved_model"`, `"ctranslate2"`, `"onnx"` or `"run"`. See `export_saved_model`,
            `export_ctranslate2`, `export_onnx` and `export_shared_run`.
        output: A new or empty folder. For a SavedModel, the folder that contains all versions of
            the model. Defaults to None, which means `saved_models/<run>` for a SavedModel. For
            other formats, None means a folder in the run's folder, such as
            `runs/quickstart/onnx-int8`.
        quantization: Type of the weights, for all formats except SavedModel. Defaults to None,
            which means float32.
        shortlist: Whether a SavedModel translates with `Run.shortlist()`. Defaults to False.
        checkpoint: The checkpoint to export, see `Run.model`. Defaults to None, which means the
            finished model.
        **search: Search options that replace the recipe's search options. A SavedModel accepts all
            fields of `SearchOptions`. ONNX supports `beam_size`, `length_penalty` and `max_length`.
            For ONNX, all other options of recipe and `search` must have their default values.
            CTranslate2 and `"run"` accept no search options.

    Raises:
        UserError: If the format does not support the model or an option. If a package for the
            export is not installed. If the results of the export differ from those of the model. If
            the folder is not empty, or the disk is full. After an error, nothing is written.
    """
    given = search if quantization is None else {"quantization": quantization, **search}
    given = {"shortlist": True, **given} if shortlist else given
    export, taken = _EXPORTERS[format]
    if refused := given.keys() - taken:
        raise UserError(
            f"the format {format} accepts only the options {', '.join(taken)}. "
            f"Received: {', '.join(sorted(refused))}"
        )
    try:
        return export(run, output, checkpoint, **given)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error


def _export_saved_model(
    run: Run,
    output: str | Path | None,
    checkpoint: Checkpoint | None,
    shortlist: bool = False,
    **search: Any,
) -> Exported:
    from keras_transformer.export.saved_model import export_run_saved_model

    options = run.recipe.evaluation.search_options(**search)
    chosen: dict[str, Any] = {"use_shortlist": shortlist, "checkpoint": checkpoint}
    exported = export_run_saved_model(run.directory, output, options, **chosen)
    operations = " ".join(exported.operations)
    needs = f"min_consumer {exported.min_consumer}; operations: {operations}"
    return Exported(exported.directory, f"{exported.comparison}\n{needs}")


def _export_ctranslate2(
    run: Run,
    output: str | Path | None,
    checkpoint: Checkpoint | None,
    quantization: str = "float32",
) -> Exported:
    from keras_transformer.export.ctranslate2 import export_ctranslate2

    directory = _free_directory(run, output, "ctranslate2", quantization)
    parts = (run.model(checkpoint), run.tokenizer(), directory, quantization)
    comparison = export_ctranslate2(*parts, run_sentences(run, SENTENCES))
    return Exported(directory, str(comparison))


def _export_onnx(
    run: Run,
    output: str | Path | None,
    checkpoint: Checkpoint | None,
    quantization: Any = "float32",
    **search: Any,
) -> Exported:
    from keras_transformer.export.onnx import export_onnx

    options = run.recipe.evaluation.search_options(**search)
    _check_onnx_search(options)
    directory = _free_directory(run, output, "onnx", quantization)
    parts = (run.model(checkpoint), run.tokenizer(), directory, quantization)
    supported = {name: getattr(options, name) for name in _ONNX_SEARCH}
    comparison = export_onnx(*parts, run_sentences(run, SENTENCES), **supported)
    return Exported(directory, str(comparison))


def _export_run(
    run: Run,
    output: str | Path | None,
    checkpoint: Checkpoint | None,
    quantization: Any = "float32",
) -> Exported:
    from keras_transformer.export.shared_run import export_shared_run

    directory = _free_directory(run, output, "run", quantization)
    sentences = run_sentences(run, SENTENCES)
    comparison = export_shared_run(run, directory, quantization, sentences, checkpoint)
    return Exported(directory, str(comparison))


def _check_onnx_search(options: SearchOptions) -> None:
    """Raises `UserError` if a search option has an effect that the ONNX export does not support."""
    defaults, ignored = SearchOptions(), {*_ONNX_SEARCH, "n_best"}
    refused = [name for name, x in options if name not in ignored and x != getattr(defaults, name)]
    if refused:
        received = ", ".join(f"{name}={getattr(options, name)}" for name in refused)
        flags = (f"--{name.replace('_', '-')} {getattr(defaults, name)}" for name in refused)
        raise UserError(
            f"the format onnx supports only the search options {', '.join(_ONNX_SEARCH)}. To "
            f"export without the others, replace those of the recipe: {' '.join(flags)}. To export "
            f"with them, use the format saved_model. Received: {received}"
        )


# Maps each format to its exporter, and to the options that the exporter takes.
_EXPORTERS: dict[str, tuple[Callable[..., Exported], tuple[str, ...]]] = {
    "saved_model": (_export_saved_model, ("shortlist", *SearchOptions.model_fields)),
    "ctranslate2": (_export_ctranslate2, ("quantization",)),
    "onnx": (_export_onnx, ("quantization", *sorted({*SearchOptions.model_fields} - {"n_best"}))),
    "run": (_export_run, ("quantization",)),
}


def _free_directory(run: Run, output: str | Path | None, format: str, quantization: str) -> Path:
    name = format if quantization == "float32" else f"{format}-{quantization}"
    directory = run.directory / name if output is None else Path(output)
    check_is_free(directory)
    return directory
