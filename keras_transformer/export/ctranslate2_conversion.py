"""Converts a run's model for the engine ctranslate2, and keeps the result in the run's folder.

The model is converted once. Before each use, this module checks the hashes of the converted files,
the model and the tokenizer. The check needs no Keras.
"""

import hashlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer._files import atomic_write, read_json, remove
from keras_transformer.errors import UserError
from keras_transformer.translation.open_run import open_model

if TYPE_CHECKING:
    from keras_transformer.runs.run import Run

FOLDER = ".ctranslate2"
# File of the conversion with all hashes. Raise the version if a new release converts differently.
HASHES, VERSION = "hashes.json", 1
SENTENCES = 32  # Number of sentences that conversion and model translate for the comparison.
_MOST_HASHES_BYTES = 64 * 1024


def converted(run: "Run") -> Path:
    """Converts a run's model for CTranslate2 if needed, and returns the folder of the result.

    The model is converted if there is no such folder, if a file in it is damaged, or if the model
    or the tokenizer has changed. `export_ctranslate2` writes the folder.

    Raises:
        UserError: If the run has no model, CTranslate2 does not support the model, or the folder
            cannot be written.
    """
    run.model_place()
    folder = run.directory / FOLDER
    if not _is_current(run, folder):
        if not os.access(run.directory, os.W_OK | os.X_OK):
            raise UserError(
                f"{run.directory} must be writable, because the conversion for CTranslate2 is kept "
                "there; use the engine keras, or a copy of the run"
            )
        with run.writing():
            if not _is_current(run, folder):  # Another process may have converted the model.
                _convert(run, folder)
    return folder


def _is_current(run: "Run", folder: Path) -> bool:
    try:
        with (folder / HASHES).open("rb") as file:
            return read_json(file, _MOST_HASHES_BYTES) == _hashes(run, folder)
    except (OSError, ValueError):
        return False


def _convert(run: "Run", folder: Path) -> None:
    from keras_transformer.export.ctranslate2 import export_ctranslate2
    from keras_transformer.export.source_model import run_sentences

    print(f"Converting {run.model_path} for CTranslate2; this is done once.", file=sys.stderr)
    sources = _source_digests(run)
    parts = open_model(run), run.tokenizer()
    with atomic_write(folder) as partial:
        try:
            export_ctranslate2(*parts, partial, sentences=run_sentences(run, SENTENCES))
        except ValueError as error:
            raise UserError(f"{error}; use the engine keras") from error
        hashes = _hashes(run, partial)
        if hashes["sources"] != sources:
            raise UserError(f"{run.model_path} changed while it was converted; start again")
        (partial / HASHES).write_text(json.dumps(hashes), "utf-8")
        remove(folder.resolve())


def _hashes(run: "Run", folder: Path) -> dict[str, Any]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != HASHES]
    return {
        "version": VERSION,
        "sources": _source_digests(run),
        "files": _digests(folder, files),
    }


def _source_digests(run: "Run") -> dict[str, str]:
    paths = [run.model_path, *run.tokenizer_dir.iterdir()]
    return _digests(run.directory, [path for path in paths if path.is_file()])


def _digests(folder: Path, paths: list[Path]) -> dict[str, str]:
    """Returns a dict from the path of each file in `folder` to its hash.

    Several threads hash files at the same time.
    """

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    names = [path.relative_to(folder).as_posix() for path in paths]
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(digest, paths), strict=True))
