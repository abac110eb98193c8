"""Exports the model of a run to SavedModel, CTranslate2 or ONNX, or the run to a small folder.

Checks the options before the slow import of Keras.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from keras_transformer._files import check_is_free
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.export.packages import check_installed
from keras_transformer.runs.run import Checkpoint, Run
from keras_transformer.translation.open_run import open_model

Format = Literal["saved_model", "ctranslate2", "onnx", "run"]
# The types of weights of the formats run and onnx.
RunWeights = Literal["float32", "float16"]
OnnxWeights = Literal["float32", "int8"]

_CTRANSLATE2_INTEGERS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")
# The types of weights of each format.
QUANTIZATIONS: dict[str, tuple[str, ...]] = {
    "saved_model": (),
    "ctranslate2": ("float32", *_CTRANSLATE2_INTEGERS, "float16", "bfloat16"),
    "onnx": get_args(OnnxWeights),
    "run": get_args(RunWeights),
}
_MAX_BEAM_SIZE = 16  # of a request to a SavedModel
_ALL_SEARCH = tuple(name for name in SearchOptions.model_fields if name != "n_best")
_ONNX_SEARCH = ("beam_size", "length_penalty", "max_length")
# The formats that have only the operations of a Transformer.
_FOR_TRANSFORMERS = ("ctranslate2", "onnx")
# The other options of each format. The ONNX export refuses most search options that have an effect.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "saved_model": ("shortlist", *_ALL_SEARCH),
    "ctranslate2": ("quantization",),
    "onnx": ("quantization", *_ALL_SEARCH),
    "run": ("quantization",),
}

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
        shortlist: Whether a SavedModel translates with `open_shortlist(run)`. Defaults to False.
        checkpoint: The checkpoint to export, see `Run.model`. Defaults to None, which means the
            finished model.
        **search: Search options that replace the recipe's search options. A SavedModel accepts all
            fields of `SearchOptions` but `n_best`, which each request sets. ONNX supports
            `beam_size`, `length_penalty` and `max_length`. For ONNX, all other options of recipe
            and `search` must have their default values, except `n_best`, which it does not use:
            the export gives one translation. CTranslate2 and `"run"` accept no search
            options.

    Raises:
        UserError: If the format does not support the model or an option. If a package for the
            export is not installed. If the results of the export differ from those of the model. If
            the folder is not empty, or the disk is full. After an error, nothing is written.
    """
    given = {"quantization": quantization, "shortlist": shortlist or None, **search}
    _check_options(format, {name: x for name, x in given.items() if x is not None})
    weights = quantization or "float32"
    name = format if weights == "float32" else f"{format}-{weights}"
    directory = run.directory / name if output is None else Path(output)
    try:
        options = run.recipe.evaluation.search_options(**search)
        _check_search(format, options)
        if format in _FOR_TRANSFORMERS:
            run.require_transformer(f"The format {format}")
        check_installed(format)
        if format != "saved_model":
            check_is_free(directory)
        run.model_place(checkpoint)
        print("Exporting the model, and comparing the export with the model.", file=sys.stderr)
        if format == "saved_model":
            return _export_saved_model(run, output, options, shortlist, checkpoint)
        comparison = _export(run, format, directory, weights, checkpoint, options)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error
    return Exported(directory, str(comparison))


def _check_options(format: Format, given: dict[str, Any]) -> None:
    if refused := sorted(given.keys() - _OPTIONS[format]):
        raise UserError(
            f"the format {format} does not support {_listed(refused)}. Besides `output` and "
            f"`checkpoint`, it supports only {_listed(_OPTIONS[format])}"
        )
    quantization = given.get("quantization", "float32")
    if format != "saved_model" and quantization not in QUANTIZATIONS[format]:
        raise UserError(
            f"for the format {format}, `quantization` must be one of "
            f"{', '.join(QUANTIZATIONS[format])}. Received: quantization={quantization!r}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _check_search(format: Format, options: SearchOptions) -> None:
    """Raises `UserError` if a search option has an effect that the export does not support."""
    if format == "saved_model" and options.beam_size > _MAX_BEAM_SIZE:
        raise UserError(
            f"for the format saved_model, `beam_size` must be at most {_MAX_BEAM_SIZE}. "
            f"Received: beam_size={options.beam_size}"
        )
    if format != "onnx":
        return
    defaults, ignored = SearchOptions(), {*_ONNX_SEARCH, "n_best"}
    refused = [name for name, x in options if name not in ignored and x != getattr(defaults, name)]
    if refused:
        received = ", ".join(f"{name}={getattr(options, name)}" for name in refused)
        flags = (f"--{name.replace('_', '-')} {getattr(defaults, name)}" for name in refused)
        raise UserError(
            f"the format onnx supports only the search options {_listed(_ONNX_SEARCH)}. To "
            f"export without the others, replace those of the recipe: {' '.join(flags)}. To export "
            f"with them, use the format saved_model. Received: {received}"
        )


def _export_saved_model(
    run: Run,
    output: str | Path | None,
    options: SearchOptions,
    use_shortlist: bool,
    checkpoint: Checkpoint | None,
) -> Exported:
    from keras_transformer.export.saved_model import export_run_saved_model

    exported = export_run_saved_model(
        run.directory, output, options, _MAX_BEAM_SIZE, use_shortlist, checkpoint
    )
    needs = f"needs a server that reads GraphDef version {exported.min_consumer} or newer"
    return Exported(exported.directory, f"{exported.comparison}\n{needs}")


def _export(
    run: Run,
    format: Format,
    directory: Path,
    weights: Any,
    checkpoint: Checkpoint | None,
    options: SearchOptions,
) -> Any:
    """Exports to a format other than SavedModel, and returns the comparison."""
    from keras_transformer import export
    from keras_transformer.translation.comparison import run_sentences

    sentences = run_sentences(run, SENTENCES)
    if format == "run":
        return export.export_shared_run(run, directory, weights, sentences, checkpoint)
    parts = (open_model(run, checkpoint), run.tokenizer(), directory, weights, sentences)
    if format == "ctranslate2":
        return export.export_ctranslate2(*parts)
    return export.export_onnx(*parts, **{name: getattr(options, name) for name in _ONNX_SEARCH})
