"""Converts a run's model for the engine ctranslate2, and keeps the result in the run's folder."""

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write, remove
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Run
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    run_sentences,
    scored_translations,
)
from keras_transformer.translation.ctranslate2_translator import (
    CTranslate2Translator,
    import_ctranslate2,
)
from keras_transformer.translation.open_run import open_model

FOLDER = ".ctranslate2"
# File of the conversion with the sizes and times of the files of model and tokenizer. Raise the
# version if the conversion changes.
STAMPS, VERSION = "stamps.json", 2
SENTENCES = 32  # Number of sentences that conversion and model translate for the comparison.
# Translations tie if their log-probabilities differ by at most this number of nats per token.
TOLERANCE = 1e-2


def converted(run: Run) -> Path:
    """Converts a run's model for CTranslate2 if needed, and returns the folder of the result.

    The model is converted if there is no such folder, or if the model or the tokenizer has another
    size or time of its last change than before the conversion.

    A translator that finds a conversion loads no Keras model.

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


def compare_ctranslate2(
    directory: Path,
    model: Any,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    is_exact: bool = True,
) -> Agreement:
    """Compares greedy translations by a CTranslate2 model in a folder with those by its model.

    Scores are log-probabilities in nats per token. They may differ if padding or bos are probable,
    as in an untrained model: CTranslate2 gives their probability to the other tokens. So it is
    enough that the texts or the scores are equal.

    Raises:
        UserError: If `is_exact` is True and both differ.
    """
    from keras_transformer.translation.translator import Translator

    options = SearchOptions(beam_size=1, length_penalty=1.0, length_penalty_form="power")
    engine = import_ctranslate2()
    level = engine.get_log_level()
    engine.set_log_level(logging.ERROR)  # This CPU need not have the type of the weights.
    try:
        exported = CTranslate2Translator(directory, options, "truncate")
    finally:
        engine.set_log_level(level)
    return compare_translations(
        "CTranslate2 model",
        Translator(model, tokenizer, options, "truncate"),
        sentences,
        scored_translations(exported, sentences),
        tolerance=TOLERANCE,
        is_exact=is_exact,
        compares_scores=False,
    )


def _convert(run: Run, folder: Path) -> None:
    from keras_transformer.exchange.ctranslate2 import write_ctranslate2
    from keras_transformer.models.base import in_float32

    print(f"Converting {run.model_path} for CTranslate2; this is done once.", file=sys.stderr)
    stamps = _stamps(run)
    model, tokenizer = in_float32(open_model(run)), run.tokenizer()
    with atomic_write(folder) as partial:
        try:
            write_ctranslate2(model, tokenizer, partial)
        except ValueError as error:
            raise UserError(f"{error}; use the engine keras") from error
        compare_ctranslate2(partial, model, tokenizer, run_sentences(run, SENTENCES))
        (partial / STAMPS).write_text(json.dumps(stamps), "utf-8")
        remove(folder.resolve())


def _is_current(run: Run, folder: Path) -> bool:
    try:
        return bool(json.loads((folder / STAMPS).read_bytes()) == _stamps(run))
    except (OSError, ValueError):
        return False


def _stamps(run: Run) -> dict[str, Any]:
    """Returns size (bytes) and time of the last change (ns) of the model and tokenizer files."""
    paths = filter(Path.is_file, (run.model_path, *run.tokenizer_dir.iterdir()))
    found = {path.name: path.stat() for path in paths}
    return {"version": VERSION} | {x: [y.st_size, y.st_mtime_ns] for x, y in found.items()}
