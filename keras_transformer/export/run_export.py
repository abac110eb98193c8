"""Exports the model of a run to SavedModel, CTranslate2 or ONNX, or the run to a small folder.

`python -m keras_transformer.export.run_export RUN OPTIONS [PROGRAM]` exports in the process that
`export_run` starts for a SavedModel. OPTIONS are `ExportOptions` as JSON, PROGRAM is the file that
registers the architecture (see `program_of`), and the last line of the output is an `Exported` or
an error as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer._child_process import child_process
from keras_transformer._files import check_is_free
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.export.options import FORMATS, ExportOptions, check_installed
from keras_transformer.models.seq2seq import program_of, run_program
from keras_transformer.runs.run import Run

MAX_BEAM_SIZE = 16  # of a request to a SavedModel
SENTENCES = 32  # maximum number of sentences that export and model translate for the comparison


class Exported(NamedTuple):
    """Result of `export_run`. Contains the new folder and a text that compares export and model."""

    directory: Path
    comparison: str  # for a SavedModel, also the operations that the server must support


def export_run(run: Run, options: ExportOptions) -> Exported:
    """Exports the model of a run, and compares the export with the model.

    A SavedModel is written by a new process with KERAS_BACKEND=tensorflow, whatever backend this
    process has. This process then imports neither Keras nor TensorFlow.

    Example:

    >>> export_run(Run.open("runs/quickstart"), ExportOptions(format="onnx", quantization="int8"))

    Args:
        run: A run that has a model, or a checkpoint.
        options: What to export, and where to.

    Raises:
        UserError: If the format does not support the model or a search option. If a package for the
            export is not installed. If the results of the export differ from those of the model. If
            the folder is not empty, or the disk is full. After an error, nothing is written.
    """
    format = options.format
    search = options.search or run.recipe.evaluation.search_options()
    _check_search(format, search)
    if FORMATS[format].only_transformer:
        run.require_transformer(f"The format {format}")
    directory = options.output or _default_directory(run, options)
    if format != "saved_model":
        check_is_free(directory)
    run.model_place(options.checkpoint)
    complete = options.model_copy(update={"search": search, "output": directory})
    export = _in_new_process if format == "saved_model" else _export
    try:
        check_installed(format)
        print("Exporting the model, and comparing the export with the model.", file=sys.stderr)
        return export(run, complete)
    except (ImportError, ValueError) as error:
        raise UserError(str(error)) from error


def _check_search(format: str, search: SearchOptions) -> None:
    """Raises `UserError` if a search option has an effect that the export does not support."""
    if format == "saved_model" and search.beam_size > MAX_BEAM_SIZE:
        raise UserError(
            f"for the format saved_model, `beam_size` must be at most {MAX_BEAM_SIZE}. "
            f"Received: beam_size={search.beam_size}"
        )
    if not (supported := FORMATS[format].search):
        return
    defaults, ignored = SearchOptions(), {*supported, "n_best"}
    refused = [name for name, x in search if name not in ignored and x != getattr(defaults, name)]
    if refused:
        received = ", ".join(f"{name}={getattr(search, name)}" for name in refused)
        flags = (f"--{name.replace('_', '-')} {getattr(defaults, name)}" for name in refused)
        raise UserError(
            f"the format {format} supports only the search options {', '.join(supported)}. To "
            f"export without the others, replace those of the recipe: {' '.join(flags)}. To export "
            f"with them, use the format saved_model. Received: {received}"
        )


def _default_directory(run: Run, options: ExportOptions) -> Path:
    folder = Path("exports", run.directory.resolve().name)
    if options.format == "saved_model":
        return folder
    is_whole = options.quantization == "float32"
    return folder / (options.format if is_whole else f"{options.format}-{options.quantization}")


def _export(run: Run, options: ExportOptions) -> Exported:
    """Exports in this process. `options` have all values."""
    from keras_transformer.export.ctranslate2 import export_ctranslate2
    from keras_transformer.export.onnx import export_onnx
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.export.shared_run import export_shared_run
    from keras_transformer.translation.comparison import run_sentences
    from keras_transformer.translation.open_run import open_model, open_shortlist

    weights: Any = options.quantization
    output, search = options.output, options.search
    assert output and search
    sentences = run_sentences(run, SENTENCES)
    if options.format == "run":
        found = export_shared_run(run, output, weights, sentences, options.checkpoint)
        return Exported(output, str(found))
    model, tokenizer = open_model(run, options.checkpoint), run.tokenizer()
    if options.format == "saved_model":
        shortlist = open_shortlist(run, tokenizer) if options.shortlist else None
        saved = export_saved_model(
            *(model, tokenizer, output),
            options=search,
            max_beam_size=MAX_BEAM_SIZE,
            sentences=sentences[: SENTENCES // 2],  # Its beams are compared, too.
            shortlist=shortlist,
        )
        needs = f"needs a server that reads GraphDef version {saved.min_consumer} or newer"
        return Exported(saved.directory, f"{saved.comparison}\n{needs}")
    parts = model, tokenizer, output, weights, sentences
    if options.format == "ctranslate2":
        return Exported(output, str(export_ctranslate2(*parts)))
    own = {name: getattr(search, name) for name in FORMATS["onnx"].search}
    return Exported(output, str(export_onnx(*parts, **own)))


def _in_new_process(run: Run, options: ExportOptions) -> Exported:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [str(run.directory), options.model_dump_json()]
    with child_process(
        [sys.executable, "-m", __name__, *words, *program_of(run.recipe.model.architecture)],
        text=True,
        encoding="utf-8",
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
        **pipes,
    ) as process:
        output, log = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"the process that writes the SavedModel ended with exit code {process.returncode}:\n"
            f"{log}"
        )
    directory, comparison, error = json.loads(output.splitlines()[-1])
    if error:
        raise UserError(error)
    return Exported(Path(directory), comparison)


def _main(run: str, options: str, *program: str) -> None:
    try:
        run_program(*program)
        exported = _export(Run.open(run), ExportOptions.model_validate_json(options))
        answer = [*map(str, exported), None]
    except (OSError, UserError, ValueError) as error:
        answer = [None, None, str(error)]
    print(json.dumps(answer))


if __name__ == "__main__":
    _main(*sys.argv[1:])
