"""Exports the model of a run to other formats, or the run to a small folder."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_transformer._backend import child_process
from keras_transformer._files import check_is_free
from keras_transformer.architectures import program_of, run_program
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import SENTENCES, run_sentences
from keras_transformer.formats.ctranslate2 import export_ctranslate2
from keras_transformer.formats.export_options import FORMATS, ExportOptions
from keras_transformer.formats.hugging_face import export_hugging_face
from keras_transformer.formats.onnx import export_onnx
from keras_transformer.formats.run_folder import export_shared_run
from keras_transformer.formats.saved_model import Exported, export_saved_model
from keras_transformer.formats.web import export_web
from keras_transformer.recipe.sections import OF_RUN
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run, opened_runs
from keras_transformer.translation.open_run import open_model, open_shortlist

_CHILD = "import sys; from keras_transformer.formats.run_export import main; main(*sys.argv[1:])"


def export_run(run: Run | str | Path, options: ExportOptions) -> Exported:
    """Exports the model of a run, and compares the export with the model.

    A SavedModel is written by a new process with KERAS_BACKEND=tensorflow, whatever backend this
    process has.

    Example:

    >>> export_run(Run.open("runs/quickstart"), ExportOptions(format="onnx", quantization="int8"))

    Args:
        run: A run that has a model, or a checkpoint, or its folder or name.
        options: What to export, and where to.

    Raises:
        UserError: If the format does not support the model or a search option. If a package for the
            export is not installed. If the results of the export differ from those of the model. If
            the folder is not empty, or the disk is full. After an error, nothing is written.
    """
    (run,) = opened_runs(run)
    format, is_saved_model = options.format, options.format == "saved_model"
    search = options.search or run.recipe.evaluation.search_options()
    _check_search(format, search)
    if format in ("ctranslate2", "onnx", "web", "hugging_face"):
        run.require_transformer(f"The format {format}")
    directory = options.output or Path("exports", run.directory.resolve().name)
    if not is_saved_model:
        is_default = options.weights == FORMATS[format].quantizations[0]
        kind = "" if is_default else f"-{options.weights}"
        directory = options.output or directory / f"{format}{kind}"
        check_is_free(directory)
    run.model_place(options.checkpoint)
    if missing := [name for name in FORMATS[format].packages if not find_spec(name)]:
        raise UserError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{FORMATS[format].packages[0]}]'"
        )
    complete = options.model_copy(update={"search": search, "output": directory})
    print("Exporting the model, and comparing the export with the model.", file=sys.stderr)
    try:
        return (_in_new_process if is_saved_model else _export)(run, complete)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error


def _check_search(format: str, search: SearchOptions) -> None:
    supported = FORMATS[format].search or tuple(SearchOptions.model_fields)
    changed = search.model_dump(exclude_defaults=True, exclude={"n_best", *supported})
    if not changed:
        return
    ways = (
        f"remove evaluation.{x}" if value is None else f"give --{x.replace('_', '-')} {value}"
        for x, value in SearchOptions().model_dump(include={*changed}).items()
    )
    raise UserError(
        f"the format {format} supports only the search options {', '.join(supported)}. Use the "
        f"format saved_model, or change those of the recipe: {', '.join(ways)}. "
        f"Received: {', '.join(f'{name}={value}' for name, value in changed.items())}"
    )


def _export(run: Run, options: ExportOptions) -> Exported:
    """Exports in this process. `options` have all values."""
    weights: Any = options.weights
    output, search = options.output, options.search
    assert output and search
    sentences = run_sentences(run)
    found: Any
    if options.format == "run":
        found = export_shared_run(run, output, weights, sentences, options.checkpoint)
        return Exported(output, str(found))
    languages = run.recipe.data.source_language, run.recipe.data.target_language
    tokenizer = run.tokenizer()
    model = open_model(run, options.checkpoint, tokenizer=tokenizer)
    if options.format == "saved_model":
        shortlist = open_shortlist(run, tokenizer) if options.shortlist else None
        sentences = sentences[: SENTENCES // 2]  # Its beams are compared, too.
        return export_saved_model(
            model, tokenizer, output, options=search, sentences=sentences, shortlist=shortlist
        )
    if options.format == "ctranslate2":
        found = export_ctranslate2(model, tokenizer, output, weights, sentences)
    elif options.format == "hugging_face":
        found = export_hugging_face(model, tokenizer, output, search, languages, sentences)
    elif options.format == "onnx":
        found = export_onnx(model, tokenizer, output, weights, sentences, search)
    else:
        own: dict[str, Any] = {"sentences": sentences, "options": search}
        runtime = options.onnxruntime_web
        found = export_web(model, tokenizer, output, weights, languages, runtime, **own)
    return Exported(output, str(found))


def _in_new_process(run: Run, options: ExportOptions) -> Exported:
    given = (
        str(run.directory),
        run.recipe.model_dump_json(exclude_none=True),
        options.model_dump_json(),
    )
    with child_process(
        [sys.executable, "-c", _CHILD, *given, *program_of(run.recipe.model.architecture)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        output, log = process.communicate()
    if process.returncode:
        reason = "".join(log.splitlines()[-1:])
        raise RuntimeError(f"the export to a SavedModel failed: {reason}\n{log}")
    directory, comparison, error = json.loads(output.splitlines()[-1])
    if error:
        raise UserError(error)
    return Exported(Path(directory), comparison)


def main(directory: str, recipe: str, options: str, *program: str) -> None:
    """Exports a SavedModel in a new process. Prints an `Exported` and an error, as JSON.

    Recipe and options are JSON, and `program` registers the architecture (`program_of`).
    """
    try:
        run_program(*program)
        run = Run(directory, Recipe.model_validate_json(recipe, context=OF_RUN))
        answer = [*map(str, _export(run, ExportOptions.model_validate_json(options))), None]
    except (ImportError, OSError, UserError, ValueError) as error:
        answer = [None, None, str(error)]
    print(json.dumps(answer))
