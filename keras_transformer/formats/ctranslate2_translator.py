"""Translates strings with CTranslate2, without Keras."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._backend import check_not_forked
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions, length_penalty_base
from keras_transformer.errors import UserError, imported
from keras_transformer.translation.base_translator import (
    Advance,
    BaseTranslator,
    CopyUnknown,
    Overlong,
)
from keras_transformer.translation.hypothesis import Hypothesis, NBest, SourcePart
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


class CTranslate2Translator(BaseTranslator):
    """Translates lists of sentences on the CPU with a model that `export_ctranslate2` wrote.

    The methods `translate`, `translate_nbest`, `translate_segments` and `stream` work as in
    `Translator`, but without constraints. They find the same translations and scores, except for
    ties, rounding errors, and the probabilities that `export_ctranslate2` describes. Scores leave
    out the tokenizer's target prefix. After such a prefix, beam search of CTranslate2 finds empty
    translations only if eos is the most probable token there. `open_translator(run,
    engine="ctranslate2")` converts a run's model and returns a `CTranslate2Translator`.

    Example:

    >>> translator = CTranslate2Translator("runs/quickstart/ctranslate2-int8")
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        directory: Folder that `export_ctranslate2` wrote.
        options: As for `Translator`, of which only `beam_size`, `n_best`, `length_penalty`,
            `length_penalty_form` and `max_length` may differ from their defaults. If `n_best` is
            above 1, `length_penalty_form` must be `"power"`, or `length_penalty` 0: CTranslate2
            returns the `beam_size` best by its own penalty.
        overlong: As for `Translator`.
        copy_unknown: `"lines"` or `"never"`, as for `Translator`.
        word_forms: As for `Translator`.
        source_language: As for `open_translator`.
        target_language: As for `open_translator`.

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
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        engine = import_ctranslate2(options or SearchOptions(), copy_unknown)
        check_not_forked("ctranslate2")
        directory = Path(directory)
        try:
            max_length = json.loads((directory / "config.json").read_bytes())["max_length"]
            tokenizer = Tokenizer.load(directory / "tokenizer")
            self._model = engine.Translator(
                str(directory),
                inter_threads=NUM_WORKERS,
                intra_threads=1,
                max_queued_batches=-1,  # While the workers are busy, results can be read.
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, UserError) as error:
            raise UserError(f"{directory} is not an export for CTranslate2: {error}") from None
        tokenizer = tokenizer.with_languages(source_language, target_language)
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
        aligned: Collection[int],
    ) -> NBest:
        _refuse(["prefixes, required or forbidden words"] * bool(constraints))
        check_not_forked("ctranslate2")
        limits = list(map(self._limit(options), (len(part.ids) for part in parts)))
        found: NBest = [[]] * len(parts)
        aligned, firsts = frozenset(aligned), dict[int, Any]()
        # A call has one maximum length, and one call is much faster than one for each length. Where
        # all hypotheses end within a part's own limit, they are those of a search with that limit:
        # CTranslate2 ends a search when it has as many hypotheses as beams. The others follow.
        cut: dict[int, list[int]] = defaultdict(list)
        for calls in ({max(limits, default=0): range(len(parts))}, cut):
            for limit, indices in calls.items():
                groups = {x: [n for n in indices if (n in aligned) == x] for x in (True, False)}
                # All calls start before the first result is read, so that no worker waits.
                started = [
                    x
                    for has_attention, own in groups.items()
                    for x in self._started_searches(parts, own, limit, options, has_attention)
                ]
                if aligned and not (firsts or self._target_prefix):
                    firsts = self._started_firsts(parts, aligned)
                for index, future in started:
                    result = future.result()
                    if max(map(len, result.hypotheses)) > limits[index]:
                        cut[limits[index]].append(index)
                    else:
                        found[index] = self._hypotheses(result, options, firsts.get(index))
                        advance([index])
        return found

    def _started_searches(
        self,
        parts: list[SourcePart],
        indices: Sequence[int],
        limit: int,
        options: SearchOptions,
        has_attention: bool,
    ) -> Iterable[tuple[int, Any]]:
        """Returns the index of each part with CTranslate2's future of it, the longest first."""
        indices = sorted(indices, key=lambda index: -len(parts[index].ids))
        results = self._model.translate_batch(
            [self._names(parts[index]) for index in indices],
            target_prefix=[self._target_prefix] * len(indices) if self._target_prefix else None,
            # Less than a whole batch keeps all workers busy, too.
            max_batch_size=min(BATCH_SIZE, math.ceil(len(indices) / NUM_WORKERS)),
            asynchronous=True,
            beam_size=options.beam_size,
            num_hypotheses=options.beam_size,
            length_penalty=_penalty(options),
            min_decoding_length=0,
            max_decoding_length=limit,
            max_input_length=0,
            return_end_token=True,
            return_scores=True,
            return_attention=has_attention,
        )
        return zip(indices, results, strict=True)

    def _started_firsts(self, parts: list[SourcePart], indices: Collection[int]) -> dict[int, Any]:
        """Returns CTranslate2's future of the first row of attention of each part.

        In a batch, beam search mixes up the first rows of the sentences. They are those of any
        search, because a translation begins with bos.
        """
        results = self._model.translate_batch(
            [self._names(parts[index]) for index in indices],
            max_batch_size=BATCH_SIZE,
            asynchronous=True,
            beam_size=1,
            max_decoding_length=1,
            max_input_length=0,
            return_attention=True,
        )
        return dict(zip(indices, results, strict=True))

    def _names(self, part: SourcePart) -> list[str]:
        """Returns the pieces of a source without eos, which CTranslate2 adds."""
        end = len(part.ids) - self.tokenizer.source_eos
        return [self._source_pieces[id] for id in part.ids[:end]]

    def _hypotheses(self, result: Any, options: SearchOptions, first: Any) -> list[Hypothesis]:
        """Returns the best hypotheses, ranked by the length penalty of this package.

        Their attention is `first`, a future of the first row, and all rows.
        """
        hypotheses, ranked = result.hypotheses, []
        for number, (pieces, score) in enumerate(zip(hypotheses, result.scores, strict=True)):
            total = score * len(pieces) ** _penalty(options)
            divisor = length_penalty_base(len(pieces), options.length_penalty_form)
            ranked.append((total / divisor**options.length_penalty, total, number))
        best = sorted(ranked, key=lambda x: -x[0])[: options.n_best]
        ids = [[self._target_ids[piece] for piece in hypotheses[number]] for *_, number in best]
        kept = [tuple(id for id in row if id != self.tokenizer.eos_id) for row in ids]
        texts = self.tokenizer.decode_target(kept)
        rows = result.attention or [None] * len(hypotheses)
        return [
            Hypothesis(
                text, own, score, total, len(hypotheses[number]), attention=(first, rows[number])
            )
            for text, own, (score, total, number) in zip(texts, kept, best, strict=True)
        ]

    def _attention(self, parts: list[SourcePart], found: NBest) -> Iterator[tuple[int, np.ndarray]]:
        forced = len(self._target_prefix)
        # CTranslate2 begins with the longest, too.
        for index in sorted(range(len(parts)), key=lambda index: -len(parts[index].ids)):
            part, of_part = parts[index], found[index]
            padded = np.zeros((len(of_part), max(x.length for x in of_part), len(part.ids)))
            for weights, x in zip(padded, of_part, strict=True):
                first, rows = x.attention
                weights[: len(rows), : len(rows[0])] = rows
                if first:
                    row = first.result().attention[0][0]
                    weights[0, : len(row)] = row
            yield index, padded[:, forced:, part.before :]

    def _token_scores(self, pairs: list[tuple[SourcePart, Hypothesis]]) -> list[list[float]]:
        pieces, forced = self.tokenizer.target_pieces, len(self._target_prefix)
        sources, texts = [self._names(x) for x, _ in pairs], (self._own_ids(x) for _, x in pairs)
        targets = ([*self._target_prefix, *(pieces[id] for id in ids)] for ids in texts)
        most = self.max_length - 1  # Beside bos, there may be no room for the last piece.
        cut = [target[:most] for target in targets]
        batches = {"max_batch_size": BATCH_SIZE, "max_input_length": 0}
        rows = self._model.score_batch(sources, cut, **batches)
        return [row.log_probs[forced:-1] for row in rows]


def _penalty(options: SearchOptions) -> float:
    """Returns the length penalty for CTranslate2, which has only the form "power"."""
    is_power = options.length_penalty_form == "power"
    return (options.length_penalty if is_power else 0.0) or NO_PENALTY


def _refuse(given: Iterable[str]) -> None:
    """Raises `UserError` if something is given that only the engine keras supports."""
    if received := ", ".join(given):
        raise UserError(
            "CTranslate2 does not have these options, or defines them in another way: change them, "
            f"or use the engine keras. Received: {received}"
        )


def import_ctranslate2(options: SearchOptions, copy_unknown: CopyUnknown, **others: Any) -> Any:
    """Returns the package ctranslate2, if it is installed and supports the options.

    `others` are arguments of `open_translator` that only the engine keras has, if they are not 0.
    """
    changed = options.model_dump(exclude_defaults=True, exclude={*SUPPORTED})
    if options.n_best > 1 and options.length_penalty and options.length_penalty_form == "wu":
        names = ("n_best", "length_penalty", "length_penalty_form")
        changed |= {name: getattr(options, name) for name in names}
    changed |= {"copy_unknown": copy_unknown} if copy_unknown == "characters" else {}
    changed |= {name: value for name, value in others.items() if value}
    _refuse(f"{name}={value}" for name, value in changed.items())
    return imported("ctranslate2", "ctranslate2", "the engine ctranslate2 needs")
