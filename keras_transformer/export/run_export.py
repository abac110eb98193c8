"""Exports the model of a run to other formats, or the run to a small folder."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer._backend import child_process
from keras_transformer._files import check_is_free
from keras_transformer.architectures import program_of, run_program
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.hugging_face import export_hugging_face
from keras_transformer.export.onnx import export_onnx
from keras_transformer.export.options import PACKAGES, SEARCH_OPTIONS, ExportOptions
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.shared_run import export_shared_run
from keras_transformer.runs.run import Run, opened_runs
from keras_transformer.translation.comparison import run_sentences
from keras_transformer.translation.open_run import open_model, open_shortlist

SENTENCES = 32  # maximum number of sentences that export and model translate for the comparison

_CHILD = "import sys; from keras_transformer.export.run_export import main; main(*sys.argv[1:])"


class Exported(NamedTuple):
    """Result of `export_run`. Contains the new folder and a text that compares export and model."""

    directory: Path
    comparison: str  # for a SavedModel, also the operations that the server must support


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
    format = options.format
    search = options.search or run.recipe.evaluation.search_options()
    supported = SEARCH_OPTIONS.get(format, SearchOptions.model_fields)
    changed = search.model_dump(exclude_defaults=True, exclude={"n_best"})
    if refused := [name for name in changed if name not in supported]:
        received = ", ".join(f"{name}={changed[name]}" for name in refused)
        unset = ((name, getattr(SearchOptions(), name)) for name in refused)
        ways = (
            f"remove evaluation.{x}" if value is None else f"give --{x.replace('_', '-')} {value}"
            for x, value in unset
        )
        raise UserError(
            f"the format {format} supports only the search options {', '.join(supported)}. Use the "
            f"format saved_model, or change those of the recipe: {', '.join(ways)}. "
            f"Received: {received}"
        )
    if format in ("ctranslate2", "onnx", "hugging_face"):
        run.require_transformer(f"The format {format}")
    directory = options.output or Path("exports", run.directory.resolve().name)
    if format != "saved_model":
        kind = "" if options.quantization == "float32" else f"-{options.quantization}"
        directory = options.output or directory / f"{format}{kind}"
        check_is_free(directory)
    run.model_place(options.checkpoint)
    if missing := [name for name in PACKAGES.get(format, ()) if not find_spec(name)]:
        extra = "tensorflow" if format == "saved_model" else format
        raise UserError(
            f"the format {format} needs {' and '.join(missing)}: "
            f"pip install 'keras3-transformer[{extra}]'"
        )
    complete = options.model_copy(update={"search": search, "output": directory})
    print("Exporting the model, and comparing the export with the model.", file=sys.stderr)
    try:
        return (_in_new_process if format == "saved_model" else _export)(run, complete)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error


def _export(run: Run, options: ExportOptions) -> Exported:
    """Exports in this process. `options` have all values."""
    weights: Any = options.quantization
    output, search = options.output, options.search
    assert output and search
    sentences = run_sentences(run, SENTENCES)
    if options.format == "run":
        copied = export_shared_run(run, output, weights, sentences, options.checkpoint)
        return Exported(output, str(copied))
    tokenizer = run.tokenizer()
    model = open_model(run, options.checkpoint, tokenizer=tokenizer)
    if options.format == "saved_model":
        shortlist = open_shortlist(run, tokenizer) if options.shortlist else None
        saved = export_saved_model(
            *(model, tokenizer, output),
            options=search,
            sentences=sentences[: SENTENCES // 2],  # Its beams are compared, too.
            shortlist=shortlist,
        )
        needs = f"needs a server that reads GraphDef version {saved.min_consumer} or newer"
        return Exported(saved.directory, f"{saved.comparison}\n{needs}")
    found: Any
    if options.format == "ctranslate2":
        found = export_ctranslate2(model, tokenizer, output, weights, sentences)
    elif options.format == "hugging_face":
        languages = run.recipe.data.source_language, run.recipe.data.target_language
        found = export_hugging_face(model, tokenizer, output, search, languages, sentences)
    else:
        own = {name: getattr(search, name) for name in SEARCH_OPTIONS["onnx"]}
        found = export_onnx(model, tokenizer, output, weights, sentences, **own)
    return Exported(output, str(found))


def _in_new_process(run: Run, options: ExportOptions) -> Exported:
    program = program_of(run.recipe.model.architecture)
    with child_process(
        [sys.executable, "-c", _CHILD, str(run.directory), options.model_dump_json(), *program],
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


def main(run: str, options: str, *program: str) -> None:
    """Exports a SavedModel in a new process. Prints an `Exported` and an error, as JSON.

    `options` are `ExportOptions` as JSON, `program` registers the architecture (`program_of`).
    """
    try:
        run_program(*program)
        exported = _export(Run.open(run), ExportOptions.model_validate_json(options))
        answer = [*map(str, exported), None]
    except (ImportError, OSError, UserError, ValueError) as error:
        answer = [None, None, str(error)]
    print(json.dumps(answer))
