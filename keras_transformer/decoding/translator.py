"""Sentences in, translations out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from tqdm import tqdm

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.data.available_chunks import available_chunks
from keras_transformer.decoding.hypothesis import Hypothesis, join_hypotheses
from keras_transformer.decoding.hypothesis_score import LengthPenaltyForm
from keras_transformer.decoding.length_batches import (
    LengthBatch,
    length_batches,
    padded,
    pair_batches,
)
from keras_transformer.decoding.minimum_bayes_risk import expected_utilities
from keras_transformer.decoding.overlong import OVERLONG, Overlong, SourcePart, source_parts
from keras_transformer.decoding.sampling import random_numbers, sample
from keras_transformer.decoding.search import IMPOSSIBLE, SearchResult, TokenRule
from keras_transformer.decoding.staged_search import StagedBeamSearch
from keras_transformer.decoding.target_constraints import TargetConstraints, Words
from keras_transformer.decoding.token_rules import MinLength, NoRepeatNgrams, RepetitionPenalty
from keras_transformer.decoding.word_alignment import forced_attention, word_alignment

# A translation may be this many tokens longer than its source (§6.1).
EXTRA_LENGTH = 50

# While one batch does what a single core or the host does, another one has the other cores.
CONCURRENT_BATCHES = 3

# Lines of a stream that are translated together, at most.
STREAMED_LINES = 1024

# Parts of a sentence draw their random numbers as sentences so far away from each other.
PARTS_APART = 2**40

# Whether to show a progress bar, or what to call with each number of sentences that are done.
Progress = bool | Callable[[int], Any]


class Translator:
    """Translates lists of sentences with a trained model by beam search (§6.1).

    Sentences are sorted by length and go through the model in batches of few shapes (powers of
    two), so that little is compiled; what a sentence is batched with does not change its
    translation. The model's weights are read anew at every call.

    Example:

    >>> translator = Translator(model, tokenizer)
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        model: A `Transformer`, or any model with its `init_cache`, `step`, `variables` and
            `max_length`.
        tokenizer: The `Tokenizer` that the model was trained with.
        beam_size: Beams N per sentence; 1 is greedy search. Defaults to 4.
        length_penalty: Exponent of the length penalty, at least 0. Defaults to 0.6.
        length_penalty_form: `"wu"` or `"power"`, see `beam_search`. Defaults to `"wu"`.
        coverage_penalty: Weight of the coverage, at least 0; see `beam_search`. Defaults to 0.
        min_length: Fewest tokens of any translation, eos included. Defaults to 1.
        max_length: Most tokens of any translation, eos included, at most `model.max_length`.
            Defaults to None: 50 more than the source has, as in the paper.
        repetition_penalty: Factor on the log-probability of tokens that a translation has already,
            above 0. Defaults to 1: none.
        no_repeat_ngram_size: Tokens n of an n-gram; no translation has one twice. Defaults to 0: it
            may.
        overlong: What becomes of a sentence of more pieces than the model takes. `"split"`: it is
            split at the ends of sentences, or else between words, into parts that fit; these are
            translated apart and joined with a space. `"cut"`: only its beginning is translated,
            with a warning. Defaults to `"split"`.
        tokens_per_batch: Source tokens of one batch, padding included. Defaults to 1024.

    Raises:
        ValueError: If `max_length` is not from 1 to `model.max_length`, or another option is out of
            its range.

    Source: Vaswani et al. 2017, §6.1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        length_penalty_form: LengthPenaltyForm = "wu",
        coverage_penalty: float = 0.0,
        min_length: int = 1,
        max_length: int | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        overlong: Overlong = "split",
        tokens_per_batch: int = 1024,
    ) -> None:
        if max_length is not None and not 1 <= max_length <= model.max_length:
            raise ValueError(
                f"`max_length` must be from 1 to the model's {model.max_length}. "
                f"Received: max_length={max_length}"
            )
        if overlong not in OVERLONG:
            raise ValueError(
                f"`overlong` must be one of {list(OVERLONG)}. Received: overlong={overlong!r}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.length_penalty = length_penalty
        self.length_penalty_form = length_penalty_form
        self.coverage_penalty = coverage_penalty
        self.max_length = max_length
        self.overlong = overlong
        self.tokens_per_batch = tokens_per_batch
        self.rules = _rules(min_length, repetition_penalty, no_repeat_ngram_size, tokenizer.eos_id)
        self._beam_search = StagedBeamSearch(model)
        self._sample = compile_function(sample, model)
        self._forced_attention = compile_function(forced_attention, model)

    def translate(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        progress: Progress = False,
    ) -> list[str]:
        """Returns the best translation of each sentence.

        Args:
            sentences: Any number of strings, of any lengths. A blank one is translated to "".
            prefixes: What each translation must begin with, "" for anything; see
                `TargetConstraints`. Defaults to None.
            required: For each sentence a list of words that its translation must contain. Defaults
                to None.
            forbidden: For each sentence a list of words that its translation must not contain.
                Defaults to None.
            progress: Whether to show a progress bar, or what to call with each number of sentences
                that are done. Defaults to False.

        Returns:
            As many strings, in the same order.
        """
        found = self.translate_nbest(
            sentences, prefixes=prefixes, required=required, forbidden=forbidden, progress=progress
        )
        return [best.text for (best,) in found]

    def translate_nbest(
        self,
        sentences: Sequence[str],
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        alignments: bool = False,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Returns the `n_best` best translations of each sentence, with their scores.

        Args:
            sentences: Any number of strings, of any lengths.
            n_best: Translations per sentence, from 1 to `beam_size`. Defaults to 1.
            prefixes: As in `translate`.
            required: As in `translate`.
            forbidden: As in `translate`.
            alignments: Whether to align the words of source and translations, see
                `word_alignment`. Defaults to False.
            progress: As in `translate`.

        Returns:
            One list per sentence, in the same order, each of `n_best` hypotheses that differ in
            their ids, best first. Those of a blank sentence are empty and score 0.

        Raises:
            TypeError: If `sentences` is a single string.
            ValueError: If `n_best` is out of its range.
        """
        parts = self._parts(sentences)
        constraints = TargetConstraints(
            self.tokenizer, parts, len(sentences), prefixes, forbidden, required
        )

        def search(batch: _Batch) -> SearchResult:
            return self._beam_search(
                batch.source_ids,
                batch.max_lengths,
                *constraints.arrays(batch.parts, len(batch.source_ids)),
                beam_size=self.beam_size,
                length_penalty=self.length_penalty,
                length_penalty_form=self.length_penalty_form,
                coverage_penalty=self.coverage_penalty,
                n_best=n_best,
                **self._options(batch),
            )

        found = self._decode(parts, len(sentences), search, self.tokens_per_batch, progress)
        if alignments:
            found = self._align(parts, found)
        blank = Hypothesis("", (), 0.0, 0.0, 0, alignment=() if alignments else None)
        return _whole_sentences(parts, found, [blank] * n_best, len(sentences))

    def sample(
        self,
        sentences: Sequence[str],
        num_samples: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        first_index: int = 0,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Draws translations of each sentence at random from the model's distribution.

        Args:
            sentences: Any number of strings, of any lengths.
            num_samples: Translations per sentence. Defaults to 1.
            temperature: Above 0; see `keras_transformer.decoding.sample` for all three. Defaults
                to 1.
            top_k: Most probable tokens to draw from. Defaults to 0: all.
            top_p: Probability of the nucleus to draw from. Defaults to 1: all.
            seed: The same seed gives the same translations, whatever a sentence is batched with.
                Defaults to 0.
            first_index: Index of the first sentence in the whole text, for those who hand it over
                piece by piece. Defaults to 0.
            progress: As in `translate`.

        Returns:
            One list per sentence, in the same order, each of `num_samples` independent hypotheses
            in the order in which they were drawn.

        Raises:
            TypeError: If `sentences` is a single string.
            ValueError: If an option is out of its range.
        """
        parts = self._parts(sentences)

        def search(batch: _Batch) -> SearchResult:
            indices = [
                first_index + part.sentence + PARTS_APART * part.number for part in batch.parts
            ]
            numbers = random_numbers(seed, indices, num_samples, batch.max_length)
            unused = len(batch.source_ids) - len(indices)
            return self._sample(
                batch.source_ids,
                np.pad(numbers, ((0, unused), (0, 0), (0, 0))),
                batch.max_lengths,
                num_samples=num_samples,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                **self._options(batch),
            )

        # As many hypotheses at a time as in beam search.
        tokens = self.tokens_per_batch * self.beam_size // max(self.beam_size, num_samples)
        found = self._decode(parts, len(sentences), search, tokens, progress)
        blank = Hypothesis("", (), 0.0, 0.0, 0)
        return _whole_sentences(parts, found, [blank] * num_samples, len(sentences))

    def translate_mbr(
        self, sentences: Sequence[str], num_samples: int = 32, **drawing: Any
    ) -> list[list[Hypothesis]]:
        """Chooses of random translations the one that is most like all others.

        Args:
            sentences: Any number of strings, of any lengths.
            num_samples: Translations to draw per sentence. Defaults to 32.
            **drawing: Options of `sample`.

        Returns:
            One list per sentence, in the same order, with one hypothesis; its score is its expected
            chrF, see `expected_utilities`.
        """
        chosen = []
        for samples in self.sample(sentences, num_samples, **drawing):
            # Those that the rules left no token are no translations.
            samples = [x for x in samples if x.score > IMPOSSIBLE] or samples
            text, utility = next(iter(expected_utilities([x.text for x in samples]).items()))
            best = next(x for x in samples if x.text == text)
            chosen.append([replace(best, score=utility)])
        return chosen

    def stream(self, lines: Iterable[str]) -> Iterator[str]:
        """Translates lines as they come, in the same order.

        Someone who types gets an answer to each line; what comes fast goes in large batches. No
        more than some thousand lines are held in memory.

        Example:

        >>> for translation in translator.stream(sys.stdin):
        ...     print(translation, flush=True)

        Args:
            lines: Sentences; may block while nothing is there.

        Yields:
            The best translation of each line.
        """
        for chunk in available_chunks(lines, STREAMED_LINES):
            yield from self.translate(chunk)

    def _parts(self, sentences: Sequence[str]) -> list[SourcePart]:
        if isinstance(sentences, str):
            raise TypeError(f"`sentences` must be a list of strings. Received: {sentences!r}")
        return source_parts(sentences, self.tokenizer, self.model.max_length, self.overlong)

    def _options(self, batch: "_Batch") -> dict[str, Any]:
        return {
            "max_length": batch.max_length,
            "rules": self.rules,
            "bos_id": self.tokenizer.bos_id,
            "eos_id": self.tokenizer.eos_id,
            "pad_id": self.tokenizer.pad_id,
        }

    def _decode(
        self,
        parts: list[SourcePart],
        count: int,
        search: Callable[["_Batch"], SearchResult],
        tokens_per_batch: int,
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each part of `count` sentences."""
        lengths = [len(part.ids) for part in parts]
        batches = list(length_batches(lengths, tokens_per_batch, self.model.max_length))
        found: list[list[Hypothesis]] = [[]] * len(parts)

        def decode(of_batch: LengthBatch) -> _Batch:
            indices, rows, width = of_batch
            batch = self._batch([parts[index] for index in indices], rows, width)
            result = SearchResult(*map(ops.convert_to_numpy, search(batch)))
            for row, index in enumerate(indices):
                found[index] = self._hypotheses(result, row)
            return batch

        with _progress(progress, count) as advance, ThreadPoolExecutor(CONCURRENT_BATCHES) as pool:
            for batch in pool.map(decode, batches) if len(batches) > 1 else map(decode, batches):
                advance(_num_sentences(batch.parts))
            advance(count - _num_sentences(parts))  # The blank ones.
        return found

    def _batch(self, parts: list[SourcePart], rows: int, width: int) -> "_Batch":
        max_lengths = np.ones(rows, "int32")  # Rows that only fill the batch end at once.
        max_lengths[: len(parts)] = [self._max_length(len(part.ids)) for part in parts]
        source_ids = padded([part.ids for part in parts], rows, width, self.tokenizer.pad_id)
        return _Batch(parts, source_ids, max_lengths, self._max_length(width))

    def _max_length(self, source_length: int) -> int:
        return self.max_length or min(source_length + EXTRA_LENGTH, self.model.max_length)

    def _hypotheses(self, result: SearchResult, row: int) -> list[Hypothesis]:
        lengths = result.lengths[row].tolist()
        tokens = [
            ids[:length].tolist() for ids, length in zip(result.ids[row], lengths, strict=True)
        ]
        pieces = [[token for token in ids if token != self.tokenizer.eos_id] for ids in tokens]
        return [
            Hypothesis(text, tuple(ids), float(score), float(log_probability), length)
            for text, ids, score, log_probability, length in zip(
                self.tokenizer.decode_target(pieces),
                pieces,
                result.scores[row],
                result.log_probabilities[row],
                lengths,
                strict=True,
            )
        ]

    def _align(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each part with their alignments."""
        source_pieces, target_pieces = self.tokenizer.source_pieces, self.tokenizer.target_pieces
        aligned: list[list[Hypothesis]] = [[]] * len(parts)
        bos_id, pad_id = self.tokenizer.bos_id, self.tokenizer.pad_id
        for indices, source_ids, target_ids in pair_batches(
            [part.ids for part in parts],
            [[[bos_id, *hypothesis.ids[:-1]] for hypothesis in hypotheses] for hypotheses in found],
            self.tokens_per_batch,
            self.model.max_length,
            pad_id,
        ):
            attention = ops.convert_to_numpy(
                self._forced_attention(source_ids, target_ids, pad_id=pad_id)
            )
            for row, index in enumerate(indices):
                *source, _ = (source_pieces[id] for id in parts[index].ids)
                aligned[index] = [
                    replace(
                        hypothesis,
                        alignment=word_alignment(
                            weights, source, [target_pieces[id] for id in hypothesis.ids]
                        ),
                    )
                    for weights, hypothesis in zip(attention[row], found[index], strict=True)
                ]
        return aligned


class _Batch(NamedTuple):
    """Sources that go through the model together.

    Attributes:
        parts: There may be fewer of them than rows.
        source_ids: int32 `(B, S)`.
        max_lengths: int32 `(B,)`, most tokens of each translation.
        max_length: The largest that `max_lengths` may hold at this width.
    """

    parts: list[SourcePart]
    source_ids: np.ndarray
    max_lengths: np.ndarray
    max_length: int


def _rules(
    min_length: int, repetition_penalty: float, no_repeat_ngram_size: int, eos_id: int
) -> tuple[TokenRule, ...]:
    """The token rules of those options that are not off."""
    rules: list[TokenRule] = []
    if repetition_penalty != 1:
        rules.append(RepetitionPenalty(repetition_penalty))
    if no_repeat_ngram_size:
        rules.append(NoRepeatNgrams(no_repeat_ngram_size))
    if min_length > 1:
        rules.append(MinLength(min_length, eos_id))
    return tuple(rules)


def _num_sentences(parts: list[SourcePart]) -> int:
    return sum(part.number == 0 for part in parts)


@contextmanager
def _progress(progress: Progress, total: int) -> Iterator[Callable[[int], Any]]:
    """What to call with numbers of sentences that are done."""
    if callable(progress):
        yield progress
        return
    with tqdm(total=total, unit="sentence", disable=not progress) as bar:
        yield bar.update


def _whole_sentences(
    parts: list[SourcePart], found: list[list[Hypothesis]], blank: list[Hypothesis], count: int
) -> list[list[Hypothesis]]:
    """Joins the k-th hypotheses of the parts of each sentence; `blank` where there is none."""
    of_sentence: list[list[int]] = [[] for _ in range(count)]
    for index, part in enumerate(parts):
        of_sentence[part.sentence].append(index)
    results = []
    for indices in of_sentence:
        words = [parts[index].words for index in indices]
        columns = zip(*(found[index] for index in indices), strict=True)
        results.append([join_hypotheses(column, words) for column in columns] or blank)
    return results
