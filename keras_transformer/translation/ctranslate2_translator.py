"""Defines `CTranslate2Translator`, which translates strings with CTranslate2."""

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keras_transformer._files import read_json
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions, length_penalty_base
from keras_transformer.errors import UserError
from keras_transformer.translation.base_translator import BaseTranslator, Progress, counted_progress
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.long_sentences import Overlong, SourcePart
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


class CTranslate2Translator(BaseTranslator):
    """Translates lists of sentences on the CPU with a model that `export_ctranslate2` wrote.

    The methods `translate`, `translate_nbest` and `stream` work as in `Translator`. They find the
    same translations and scores, except for ties, rounding errors, and a difference in the
    probabilities. `export_ctranslate2` describes this difference.
    `open_translator(run, engine="ctranslate2")` converts a run's model and returns a
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
        check_options(options or SearchOptions())
        engine = import_ctranslate2()
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
        self._target_pieces = tokenizer.target_pieces
        self._target_ids = {piece: id for id, piece in enumerate(self._target_pieces)}
        _check_beam_size(self.options.beam_size, len(self._target_pieces))

    def _search_parts(
        self,
        parts: list[SourcePart],
        count: int,
        options: SearchOptions,
        constraints: TargetConstraints,
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        prefixes = self._prefixes(parts, options, constraints)
        order = sorted(range(len(parts)), key=lambda index: -len(parts[index].ids))
        found: list[list[Hypothesis]] = [[]] * len(parts)
        starts = range(0, len(order), BATCH_SIZE)
        batches = [order[start : start + BATCH_SIZE] for start in starts]

        def search(indices: list[int]) -> list[int]:
            self._search(indices, parts, prefixes, options, found)
            return indices

        with (
            counted_progress(progress, parts, count) as advance,
            ThreadPoolExecutor(NUM_WORKERS) as pool,
        ):
            for indices in pool.map(search, batches):
                advance(indices)
        return found

    def _search(
        self,
        indices: list[int],
        parts: list[SourcePart],
        prefixes: list[list[int]],
        options: SearchOptions,
        found: list[list[Hypothesis]],
    ) -> None:
        """Translates the `parts` at the `indices`, and stores the hypotheses in `found`.

        CTranslate2 takes one maximum length for all sentences of a batch. If a hypothesis reaches
        its sentence's own maximum length, the sentence is translated again with this maximum
        length.
        """
        limit = self._limit(options)
        limits = {index: limit(len(parts[index].ids)) for index in indices}
        longest = max(limits.values())
        sources = [self._source(parts[index]) for index in indices]
        targets = [self._pieces(prefixes[index]) for index in indices]
        results = self._model.translate_batch(
            sources,
            targets if any(targets) else None,
            beam_size=options.beam_size,
            num_hypotheses=options.beam_size,
            length_penalty=_penalty(options),
            min_decoding_length=0,
            max_decoding_length=longest,
            max_input_length=0,
            return_end_token=True,
            return_scores=True,
        )
        again = defaultdict(list)
        for index, source, target, result in zip(indices, sources, targets, results, strict=True):
            if max(map(len, result.hypotheses)) >= limits[index] < longest:
                again[limits[index]].append(index)
                continue
            forced = self._log_probability(source, target) if target else 0.0
            found[index] = self._hypotheses(result, forced, options)
        for same_limit in again.values():
            self._search(same_limit, parts, prefixes, options, found)

    def _prefixes(
        self, parts: list[SourcePart], options: SearchOptions, constraints: TargetConstraints
    ) -> list[list[int]]:
        if constraints.has_words:
            raise UserError(
                "CTranslate2 has no required words, and forbids words in another way: omit "
                "`required` and `forbidden`, or use the engine keras"
            )
        prefixes = [constraints.prefix(part) for part in parts]
        if any(prefixes) and options.beam_size > 1:
            raise UserError(
                "CTranslate2's beam search never ends a translation right after its prefix, unless "
                "this is most probable: with `prefixes`, `beam_size` must be 1; or use the engine "
                f"keras. Received: beam_size={options.beam_size}"
            )
        return prefixes

    def _source(self, part: SourcePart) -> list[str]:
        return [self._source_pieces[id] for id in part.ids[:-1]]  # CTranslate2 adds eos.

    def _pieces(self, ids: list[int]) -> list[str]:
        return [self._target_pieces[id] for id in ids]

    def _log_probability(self, source: list[str], prefix: list[str]) -> float:
        """Returns the log-probability of a prefix, which CTranslate2's scores do not include."""
        (scored,) = self._model.score_batch([source], [prefix], max_input_length=0)
        return sum(scored.log_probs[: len(prefix)])

    def _hypotheses(self, result: Any, forced: float, options: SearchOptions) -> list[Hypothesis]:
        """Returns the best hypotheses.

        `forced`, the log-probability of the prefix, is added to all log-probabilities.
        """
        found = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            length = len(pieces)
            total = score * length ** _penalty(options) + forced
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


def import_ctranslate2() -> Any:
    """Imports and returns ctranslate2.

    Raises:
        UserError: If ctranslate2 is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError(
            "the engine ctranslate2 needs another package: "
            "pip install 'keras3-transformer[ctranslate2]'"
        ) from error
    return ctranslate2


def check_options(options: SearchOptions) -> None:
    """Raises a UserError if CTranslate2 does not support the values of the options."""
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


def _check_beam_size(beam_size: int, vocabulary_size: int) -> None:
    """Raises a UserError if padding or bos could be among the candidates of the first step."""
    most = max((vocabulary_size - 2) // 2, 1)
    if beam_size > most:
        raise UserError(
            f"with CTranslate2, `beam_size` must be at most {most}, half the target pieces. "
            f"Received: beam_size={beam_size}; use the engine keras"
        )


def _penalty(options: SearchOptions) -> float:
    """Returns the length penalty for CTranslate2, which has only the form "power"."""
    is_power = options.length_penalty_form == "power"
    return (options.length_penalty if is_power else 0.0) or NO_PENALTY
