"""Translates strings with CTranslate2. The conversion of a run's model is kept in its folder."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write, read_json, remove
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions, length_penalty_base
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Run
from keras_transformer.translation.base_translator import Advance, BaseTranslator, Overlong
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    run_sentences,
    scored_translations,
)
from keras_transformer.translation.hypothesis import Hypothesis, SourcePart
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.target_constraints import TargetConstraints

# CTranslate2 applies the rules of other options to logits, before the softmax, or lacks them. With
# the coverage penalty, CTranslate2 does not return log-probabilities.
SUPPORTED = ("beam_size", "n_best", "length_penalty", "length_penalty_form", "max_length")
# Sentences that CTranslate2 translates together.
BATCH_SIZE = 32
# Batches that CTranslate2 translates at the same time, each with one thread. This is faster than
# several threads for each batch.
NUM_WORKERS = min(os.cpu_count() or 1, 8)
# Divides all log-probabilities by 1. With a length penalty of 0, CTranslate2 would search longer.
NO_PENALTY = 1e-9
_MOST_CONFIG_BYTES = 64 * 1024

FOLDER = ".ctranslate2"
# File of the conversion with the sizes and times of the files of model and tokenizer. Raise the
# version if the conversion changes.
STAMPS, VERSION = "stamps.json", 2
SENTENCES = 32  # Number of sentences that conversion and model translate for the comparison.
# Translations tie if their log-probabilities differ by at most this number of nats per token.
TOLERANCE = 1e-2


class CTranslate2Translator(BaseTranslator):
    """Translates lists of sentences on the CPU with a model that `export_ctranslate2` wrote.

    The methods `translate`, `translate_nbest` and `stream` work as in `Translator`, but without
    constraints and alignments. They find the same translations and scores, except for ties,
    rounding errors, and a difference in the probabilities. `export_ctranslate2` describes this
    difference. `open_translator(run, engine="ctranslate2")` converts a run's model and returns a
    `CTranslate2Translator`.

    CTranslate2 returns only `beam_size` of its finished hypotheses. Whatever the length penalty is,
    the best hypothesis is among them. With the form `"power"` of the length penalty, all `n_best`
    best hypotheses are among them.

    Example:

    >>> translator = CTranslate2Translator("runs/quickstart/ctranslate2-int8")
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        directory: Folder that `export_ctranslate2` wrote.
        options: As for `Translator`. Options other than `SUPPORTED` must have their default
            values. If `n_best` is above 1, `length_penalty_form` must be `"power"`, or
            `length_penalty` must be 0. Defaults to `SearchOptions()`.
        overlong: As for `Translator`. Defaults to `"split"`.

    Raises:
        UserError: If ctranslate2 is not installed or cannot load the folder, or if CTranslate2 does
            not support the given options.
        ValueError: If `options.max_length` exceeds the maximum length of the model.
    """

    def __init__(
        self,
        directory: str | Path,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
    ) -> None:
        engine = import_ctranslate2(options or SearchOptions())
        directory = Path(directory)
        try:
            with (directory / "config.json").open("rb") as file:
                max_length = read_json(file, _MOST_CONFIG_BYTES)["max_length"]
            tokenizer = Tokenizer.load(directory / "tokenizer")
            self._model = engine.Translator(
                str(directory), inter_threads=NUM_WORKERS, intra_threads=1
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, UserError) as error:
            raise UserError(f"{directory} is not an export for CTranslate2: {error}") from None
        super().__init__(tokenizer, max_length, options, overlong)
        self._source_pieces = tokenizer.source_pieces
        self._target_ids = {piece: id for id, piece in enumerate(tokenizer.target_pieces)}

    def _search_parts(
        self,
        parts: list[SourcePart],
        options: SearchOptions,
        constraints: TargetConstraints,
        advance: Advance,
    ) -> list[list[Hypothesis]]:
        if constraints:
            raise UserError(
                "CTranslate2 has no prefixes and no required words, and forbids words in another "
                "way: use the engine keras"
            )
        # CTranslate2 takes one maximum length for all sentences of a call.
        indices_of_length = defaultdict(list)
        for index, part in enumerate(parts):
            indices_of_length[len(part.ids)].append(index)
        limit = self._limit(options)
        running: list[tuple[int, Any]] = []
        for length, indices in sorted(indices_of_length.items(), reverse=True):
            results = self._model.translate_batch(
                # CTranslate2 adds eos.
                [[self._source_pieces[id] for id in parts[i].ids[:-1]] for i in indices],
                max_batch_size=BATCH_SIZE,
                asynchronous=True,
                beam_size=options.beam_size,
                num_hypotheses=options.beam_size,
                length_penalty=_penalty(options),
                min_decoding_length=0,
                max_decoding_length=limit(length),
                max_input_length=0,
                return_end_token=True,
                return_scores=True,
            )
            running += zip(indices, results, strict=True)
        found: list[list[Hypothesis]] = [[]] * len(parts)
        for index, result in running:
            found[index] = self._hypotheses(result.result(), options)
            advance([index])
        return found

    def _hypotheses(self, result: Any, options: SearchOptions) -> list[Hypothesis]:
        """Returns the best hypotheses, ranked by the length penalty of this package."""
        found = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            length = len(pieces)
            total = score * length ** _penalty(options)
            divisor = length_penalty_base(length, options.length_penalty_form)
            found.append((total / divisor**options.length_penalty, total, length, pieces))
        best = sorted(found, key=lambda values: -values[0])[: options.n_best]
        ids = [[self._target_ids[piece] for piece in pieces] for *_, pieces in best]
        kept = [[id for id in own if id != self.tokenizer.eos_id] for own in ids]
        texts = self.tokenizer.decode_target(kept)
        return [
            Hypothesis(text, tuple(own), *values[:3])
            for text, own, values in zip(texts, kept, best, strict=True)
        ]

    def _align(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        raise UserError(
            "CTranslate2 returns the attention of one head, not the mean of all heads: omit "
            "`alignments`, or use the engine keras"
        )


def _penalty(options: SearchOptions) -> float:
    """Returns the length penalty for CTranslate2, which has only the form "power"."""
    is_power = options.length_penalty_form == "power"
    return (options.length_penalty if is_power else 0.0) or NO_PENALTY


def import_ctranslate2(options: SearchOptions) -> Any:
    """Imports and returns ctranslate2.

    Raises:
        UserError: If ctranslate2 is not installed, or does not support the values of the options.
    """
    defaults = dict(SearchOptions())
    others = {name: x for name, x in options if name not in SUPPORTED and x != defaults[name]}
    if others:
        needed = ", ".join(f"{name}={defaults[name]}" for name in others)
        received = ", ".join(f"{name}={value}" for name, value in others.items())
        raise UserError(
            "CTranslate2 does not have these options, or defines them in another way: set "
            f"{needed}, or use the engine keras. Received: {received}"
        )
    is_wu = options.length_penalty_form == "wu" and options.length_penalty > 0
    if is_wu and options.n_best > 1:
        raise UserError(
            "CTranslate2 does not return all candidates for the n best translations with the "
            'length penalty "wu": set length_penalty_form=power, length_penalty=0 or n_best=1, or '
            f"use the engine keras. Received: n_best={options.n_best}, "
            f"length_penalty={options.length_penalty}, length_penalty_form=wu"
        )
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError(
            "the engine ctranslate2 needs another package: "
            "pip install 'keras3-transformer[ctranslate2]'"
        ) from error
    return ctranslate2


def converted(run: Run) -> Path:
    """Converts a run's model for CTranslate2 if needed, and returns the folder of the result.

    The model is converted if there is no such folder, or if the model or the tokenizer has another
    size or time of its last change than before the conversion.

    Raises:
        UserError: If the run has no model, or CTranslate2 does not support the model.
    """
    run.model_place()
    folder = run.directory / FOLDER
    if not _is_current(run, folder):
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
    exported = CTranslate2Translator(directory, options, "truncate")
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
