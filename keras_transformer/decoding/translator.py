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
from keras_transformer.data.corpus import available_chunks
from keras_transformer.decoding.buckets import LengthBatch, length_batches, padded, pair_batches
from keras_transformer.decoding.hypothesis import Hypothesis, join_hypotheses
from keras_transformer.decoding.long_sentences import OVERLONG, Overlong, SourcePart, source_parts
from keras_transformer.decoding.minimum_bayes_risk import expected_utilities
from keras_transformer.decoding.options import DecodingOptions, SamplingOptions, SearchOptions
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.search import StagedSearch, make_strategy
from keras_transformer.decoding.steps import IMPOSSIBLE, Request, SearchResult
from keras_transformer.decoding.target_constraints import TargetConstraints, Words
from keras_transformer.decoding.word_alignment import word_alignment

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
    """Translates lists of sentences with a trained model (§6.1).

    Sentences are sorted by length and go through the model in batches of few shapes (powers of
    two), so that little is compiled; what a sentence is batched with does not change its
    translation. The model's weights are read anew at every call.

    Example:

    >>> translator = Translator(model, tokenizer, SearchOptions(beam_size=5))
    >>> translator.translate(["A man sleeps.", "Two dogs play in the snow."])

    Args:
        model: A `Transformer`, or any model as `models/protocol.py` describes it (`Searchable`).
        tokenizer: The `Tokenizer` that the model was trained with.
        options: The beam search. Without `options.max_length` a translation may be 50 tokens longer
            than its source, as in the paper. Defaults to `SearchOptions()`.
        overlong: What happens to a sentence of more pieces than the model takes. `"split"`: it is
            split at the ends of sentences, or else between words, into parts that fit; these are
            translated one by one and joined with a space. `"truncate"`: only its beginning is
            translated, with a warning. Defaults to `"split"`.
        tokens_per_batch: Source tokens of one batch, padding included. Defaults to 1024.

    Raises:
        ValueError: If `overlong` is unknown, or `options.max_length` exceeds `model.max_length`.

    Source: Vaswani et al. 2017, §6.1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
        tokens_per_batch: int = 1024,
    ) -> None:
        if overlong not in OVERLONG:
            raise ValueError(
                f"`overlong` must be one of {list(OVERLONG)}. Received: overlong={overlong!r}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.options = self._checked(options or SearchOptions())
        self.overlong = overlong
        self.tokens_per_batch = tokens_per_batch
        self._search = StagedSearch(model)
        self._source_attention = compile_function(_source_attention, model)

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
        found = self._translate(
            sentences,
            self.options.replace(n_best=1),
            prefixes,
            required,
            forbidden,
            False,
            progress,
        )
        return [hypotheses[0].text for hypotheses in found]

    def translate_nbest(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        alignments: bool = False,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Returns the `options.n_best` best translations of each sentence, with their scores.

        Args:
            sentences: Any number of strings, of any lengths.
            prefixes: As in `translate`.
            required: As in `translate`.
            forbidden: As in `translate`.
            alignments: Whether to align the words of source and translations, see
                `word_alignment`. Defaults to False.
            progress: As in `translate`.

        Returns:
            One list per sentence, in the same order, of hypotheses that differ in their ids, best
            first. Those of a blank sentence are empty and score 0.

        Raises:
            TypeError: If `sentences` is a single string.
        """
        return self._translate(
            sentences, self.options, prefixes, required, forbidden, alignments, progress
        )

    def _translate(
        self,
        sentences: Sequence[str],
        options: SearchOptions,
        prefixes: Sequence[str] | None,
        required: Words | None,
        forbidden: Words | None,
        alignments: bool,
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        parts = self._parts(sentences)
        constraints = TargetConstraints(
            self.tokenizer, parts, len(sentences), prefixes, forbidden, required
        )

        def demands(batch: _Batch) -> dict[str, Any]:
            return constraints.arrays(batch.parts, len(batch.source_ids))

        found = self._decode(parts, len(sentences), options, demands, progress)
        if alignments:
            found = self._align(parts, found)
        blank = Hypothesis("", (), 0.0, 0.0, 0, alignment=() if alignments else None)
        return _whole_sentences(parts, found, [blank] * options.n_best, len(sentences))

    def sample(
        self,
        sentences: Sequence[str],
        options: SamplingOptions | None = None,
        seed: int = 0,
        first_index: int = 0,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Draws translations of each sentence at random from the model's distribution.

        Args:
            sentences: Any number of strings, of any lengths.
            options: How to draw. Defaults to `SamplingOptions()`: one sample of the model's own
                distribution.
            seed: From 0 to 2**64 - 1. The same seed gives the same translations, whatever a
                sentence is batched with. Defaults to 0.
            first_index: Index of the first sentence in the whole text, for a text that is
                translated chunk by chunk. Defaults to 0.
            progress: As in `translate`.

        Returns:
            One list per sentence, in the same order, each of `options.num_samples` independent
            hypotheses in the order in which they were drawn.

        Raises:
            TypeError: If `sentences` is a single string.
        """
        options = self._checked(options or SamplingOptions())
        parts = self._parts(sentences)

        def numbers(batch: _Batch) -> dict[str, Any]:
            indices = [
                first_index + part.sentence + PARTS_APART * part.number for part in batch.parts
            ]
            drawn = random_numbers(seed, indices, options.num_samples, batch.max_length)
            unused = len(batch.source_ids) - len(indices)
            return {"random_numbers": np.pad(drawn, ((0, unused), (0, 0), (0, 0)))}

        found = self._decode(parts, len(sentences), options, numbers, progress)
        blank = [Hypothesis("", (), 0.0, 0.0, 0)] * options.num_samples
        return _whole_sentences(parts, found, blank, len(sentences))

    def translate_mbr(
        self, sentences: Sequence[str], options: SamplingOptions | None = None, **drawing: Any
    ) -> list[list[Hypothesis]]:
        """Returns, of random translations, the one most like all others: minimum Bayes risk.

        Args:
            sentences: Any number of strings, of any lengths.
            options: How to draw. Defaults to 32 samples of the model's own distribution.
            **drawing: The other arguments of `sample`.

        Returns:
            One list per sentence, in the same order, with one hypothesis; its score is its expected
            chrF, see `expected_utilities`.
        """
        options = options or SamplingOptions(num_samples=32)
        chosen = []
        for samples in self.sample(sentences, options, **drawing):
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

    def _checked(self, options: Any) -> Any:
        if options.max_length is not None and options.max_length > self.model.max_length:
            raise ValueError(
                f"`options.max_length` must be at most the model's {self.model.max_length}. "
                f"Received: max_length={options.max_length}"
            )
        return options

    def _decode(
        self,
        parts: list[SourcePart],
        count: int,
        options: DecodingOptions,
        demands: Callable[["_Batch"], dict[str, Any]],
        progress: Progress,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each part of `count` sentences; `demands` are fields of `Request`."""
        strategy = make_strategy(
            self.model, options, bos_id=self.tokenizer.bos_id, eos_id=self.tokenizer.eos_id
        )
        # As many rows of hypotheses at a time as beam search has.
        beams = self.options.beam_size
        tokens_per_batch = self.tokens_per_batch * beams // max(beams, strategy.num_beams)
        lengths = [len(part.ids) for part in parts]
        batches = list(length_batches(lengths, tokens_per_batch, self.model.max_length))
        found: list[list[Hypothesis]] = [[]] * len(parts)

        def decode(of_batch: LengthBatch) -> _Batch:
            indices, rows, width = of_batch
            batch = self._batch([parts[index] for index in indices], rows, width, options)
            request = Request(batch.source_ids, batch.max_lengths, **demands(batch))
            result = self._search(request, strategy, batch.max_length)
            for row, index in enumerate(indices):
                found[index] = self._hypotheses(result, row)
            return batch

        with _progress(progress, count) as advance, ThreadPoolExecutor(CONCURRENT_BATCHES) as pool:
            for batch in pool.map(decode, batches) if len(batches) > 1 else map(decode, batches):
                advance(_num_sentences(batch.parts))
            advance(count - _num_sentences(parts))  # The blank ones.
        return found

    def _batch(
        self, parts: list[SourcePart], rows: int, width: int, options: DecodingOptions
    ) -> "_Batch":
        def limit(source_length: int) -> int:
            return options.max_length or min(source_length + EXTRA_LENGTH, self.model.max_length)

        max_lengths = np.ones(rows, "int32")  # Rows that only fill the batch end at once.
        max_lengths[: len(parts)] = [limit(len(part.ids)) for part in parts]
        source_ids = padded([part.ids for part in parts], rows, width, self.tokenizer.pad_id)
        return _Batch(parts, source_ids, max_lengths, limit(width))

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
        if not hasattr(self.model, "source_attention"):
            raise ValueError(
                "Alignments need a model with `source_attention`. "
                f"Received: model={type(self.model).__name__}"
            )
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
            attention = ops.convert_to_numpy(self._source_attention(source_ids, target_ids))
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
        max_length: Largest value that `max_lengths` may have at this width.
    """

    parts: list[SourcePart]
    source_ids: np.ndarray
    max_lengths: np.ndarray
    max_length: int


def _source_attention(model: Any, *ids: Any) -> Any:
    return model.source_attention(*ids)


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
