"""Translates strings with CTranslate2. The conversion of a run's model is kept in its folder."""

import hashlib
import json
import os
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._backend import check_not_forked
from keras_transformer._files import atomic_write, read_config, remove
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions, length_penalty_base
from keras_transformer.errors import UserError
from keras_transformer.runs.run import Run
from keras_transformer.translation.base_translator import (
    Advance,
    BaseTranslator,
    CopyUnknown,
    Overlong,
)
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    run_sentences,
    scored_translations,
)
from keras_transformer.translation.hypothesis import Hypothesis, SourcePart
from keras_transformer.translation.target_constraints import TargetConstraints
from keras_transformer.translation.word_forms import WordForms

# CTranslate2 lacks the other options, or applies them to logits, before the softmax.
SUPPORTED = ("beam_size", "n_best", "length_penalty", "length_penalty_form", "max_length")
# Sentences that CTranslate2 translates together.
BATCH_SIZE = 32
# Batches at the same time, each with one thread, which is faster than several threads for each.
NUM_WORKERS = min(os.cpu_count() or 1, 8)
# Divides all log-probabilities by 1. With a length penalty of 0, CTranslate2 would search longer.
NO_PENALTY = 1e-9

FOLDER = ".ctranslate2"
VERSION = 4  # Raise it if the conversion changes.
SENTENCES = 32  # Number of sentences that conversion and model translate for the comparison.
# Translations tie if their log-probabilities differ by at most this number of nats per token.
TOLERANCE = 1e-2


class CTranslate2Translator(BaseTranslator):
    """Translates lists of sentences on the CPU with a model that `export_ctranslate2` wrote.

    The methods `translate`, `translate_nbest`, `translate_segments` and `stream` work as in
    `Translator`, but without constraints. They find the same translations and scores, except for
    ties, rounding errors, and a difference in the probabilities. `export_ctranslate2` describes
    this difference. `open_translator(run, engine="ctranslate2")` converts a run's model and returns
    a `CTranslate2Translator`.

    CTranslate2 returns `beam_size` finished hypotheses. The best is among them, and with the form
    `"power"` of the length penalty also the `n_best` best. Its scores leave out
    the log-probability of the tokenizer's target prefix.

    Example:

    >>> translator = CTranslate2Translator("runs/quickstart/ctranslate2-int8")
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        directory: Folder that `export_ctranslate2` wrote.
        options: As for `Translator`. Options other than `beam_size`, `n_best`, `length_penalty`,
            `length_penalty_form` and `max_length` must have their default values. If `n_best` is
            above 1, `length_penalty_form` must be `"power"`, or `length_penalty` must be 0.
        overlong: As for `Translator`.
        copy_unknown: `"lines"` or `"never"`, as for `Translator`.
        word_forms: As for `Translator`.

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
        copy_unknown: CopyUnknown = "lines",
        word_forms: WordForms | None = None,
    ) -> None:
        engine = import_ctranslate2(options or SearchOptions())
        check_not_forked("ctranslate2")
        if copy_unknown == "characters":
            raise UserError("CTranslate2 cannot copy characters: use the engine keras")
        directory = Path(directory)
        try:
            max_length = json.loads((directory / "config.json").read_bytes())["max_length"]
            tokenizer = Tokenizer.load(directory / "tokenizer")
            self._model = engine.Translator(
                str(directory), inter_threads=NUM_WORKERS, intra_threads=1
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, UserError) as error:
            raise UserError(f"{directory} is not an export for CTranslate2: {error}") from None
        super().__init__(tokenizer, max_length, options, overlong, copy_unknown, word_forms)
        self._source_pieces, pieces = tokenizer.source_pieces, tokenizer.target_pieces
        self._target_ids = {piece: id for id, piece in enumerate(pieces)}
        self._target_prefix = [pieces[id] for id in tokenizer.target_prefix_ids]

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
        check_not_forked("ctranslate2")
        # CTranslate2 takes one maximum length for all sentences of a call.
        indices_of_length = defaultdict(list)
        for index, part in enumerate(parts):
            indices_of_length[len(part.ids)].append(index)
        limit = self._limit(options)
        running: list[tuple[int, Any]] = []
        for length, indices in sorted(indices_of_length.items(), reverse=True):
            results = self._model.translate_batch(
                [self._pieces(parts[index].ids) for index in indices],
                target_prefix=[self._target_prefix] * len(indices) if self._target_prefix else None,
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

    def _pieces(self, source_ids: list[int]) -> list[str]:
        """Returns the pieces of a source without eos, which CTranslate2 adds."""
        end = len(source_ids) - self.tokenizer.source_eos
        return [self._source_pieces[id] for id in source_ids[:end]]

    def _hypotheses(self, result: Any, options: SearchOptions) -> list[Hypothesis]:
        """Returns the best hypotheses, ranked by the length penalty of this package."""
        found = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = tuple(self._target_ids[piece] for piece in pieces)
            kept = tuple(id for id in ids if id != self.tokenizer.eos_id)
            total = score * len(ids) ** _penalty(options)
            divisor = length_penalty_base(len(ids), options.length_penalty_form)
            score = total / divisor**options.length_penalty
            found.append(Hypothesis("", kept, score, total, len(ids)))
        best = sorted(found, key=lambda x: -x.score)[: options.n_best]
        texts = self.tokenizer.decode_target([x.ids for x in best])
        return [replace(x, text=text) for x, text in zip(best, texts, strict=True)]

    def _attention(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        sources, targets = self._pairs(parts, found)
        results = self._model.translate_batch(
            sources,
            target_prefix=targets,
            max_batch_size=BATCH_SIZE,
            beam_size=1,
            max_decoding_length=max(map(len, targets), default=0) + 1,
            max_input_length=0,
            return_attention=True,
            return_end_token=True,
        )
        rows, forced = iter(results), len(self._target_prefix)
        for index, (part, of_part) in enumerate(zip(parts, found, strict=True)):
            tokens = [np.atleast_2d(next(rows).attention[0]) for _ in of_part]
            shape = max(map(len, tokens)), len(part.ids)
            padded = np.zeros((len(of_part), *shape))
            for n, own in enumerate(tokens):
                padded[n, : len(own), : own.shape[1]] = own
            yield index, padded[:, forced:, part.before :]

    def _token_scores(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> Iterator[tuple[int, list[list[float]]]]:
        sources, targets = self._pairs(parts, found)
        results = self._model.score_batch(
            sources, targets, max_batch_size=BATCH_SIZE, max_input_length=0
        )
        rows, forced = iter(results), len(self._target_prefix)
        for index, of_part in enumerate(found):
            yield index, [next(rows).log_probs[forced:-1] for _ in of_part]

    def _pairs(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Returns the pieces of the source and the target of each hypothesis.

        A target lacks its last piece if it has no room beside bos.
        """
        sources = [self._pieces(x.ids) for x, y in zip(parts, found, strict=True) for _ in y]
        pieces = self.tokenizer.target_pieces
        texts = (self._own_ids(x) for of_part in found for x in of_part)
        targets = ([*self._target_prefix, *(pieces[id] for id in ids)] for ids in texts)
        return sources, [target[: self.max_length - 1] for target in targets]


def _penalty(options: SearchOptions) -> float:
    """Returns the length penalty for CTranslate2, which has only the form "power"."""
    is_power = options.length_penalty_form == "power"
    return (options.length_penalty if is_power else 0.0) or NO_PENALTY


def import_ctranslate2(options: SearchOptions) -> Any:
    """Returns the package ctranslate2, if it is installed and supports the options."""
    defaults = dict(SearchOptions())
    others = [name for name, x in options if name not in SUPPORTED and x != defaults[name]]
    if options.n_best > 1 and options.length_penalty and options.length_penalty_form == "wu":
        others += ["n_best", "length_penalty", "length_penalty_form"]
    if others:
        received = ", ".join(f"{name}={getattr(options, name)}" for name in others)
        raise UserError(
            "CTranslate2 does not have these options, or defines them in another way: change them, "
            f"or use the engine keras. Received: {received}"
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

    Its name depends on the contents of the model and the tokenizer, so copies of the run share it.
    """
    read_config(run.model_place())  # Raises an error if the archive is damaged.
    with zipfile.ZipFile(run.model_path) as archive:
        parts = [(x.filename, x.file_size, x.CRC) for x in archive.infolist()]
    content = VERSION, parts, run.tokenizer().files
    name = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    folder = run.directory / FOLDER / name
    if not folder.exists():
        with run.writing():
            if not folder.exists():  # Another process may have converted the model.
                _convert(run, folder)
    return folder


def _convert(run: Run, folder: Path) -> None:
    from keras_transformer.exchange.ctranslate2 import write_ctranslate2
    from keras_transformer.models.base import in_float32
    from keras_transformer.translation.open_run import open_model

    print(f"Converting {run.model_path} for CTranslate2; this is done once.", file=sys.stderr)
    model, tokenizer = in_float32(open_model(run)), run.tokenizer()
    remove(folder.parent)  # Conversions of former models.
    with atomic_write(folder) as partial:
        try:
            write_ctranslate2(model, tokenizer, partial)
        except ValueError as error:
            raise UserError(f"{error}; use the engine keras") from error
        compare_ctranslate2(partial, model, tokenizer, run_sentences(run, SENTENCES))


def compare_ctranslate2(
    directory: Path,
    model: Any,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    is_exact: bool = True,
) -> Agreement:
    """Compares greedy translations by a CTranslate2 model in a folder with those by its model.

    Scores, in nats per token, differ if padding or bos are probable, as in an untrained model. So
    equal texts or equal scores are enough. If `is_exact` is True and both differ, raises UserError.
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
