"""Sentences in, translations out."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from tqdm import tqdm

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.compiled import compile_function
from keras_transformer.decoding.search import SearchResult

# A translation may be this many tokens longer than its source (§6.1).
EXTRA_LENGTH = 50

SMALLEST_WIDTH = 8


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        text: The translation.
        ids: Its target pieces, without eos.
        score: Log-probability divided by the length penalty, as it was ranked.
        log_probability: In nats, eos included.
        length: In tokens, eos included.
    """

    text: str
    ids: tuple[int, ...]
    score: float
    log_probability: float
    length: int


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
        max_length: Most tokens of any translation, eos included, at most `model.max_length`.
            Defaults to None: 50 more than the source has, as in the paper.
        tokens_per_batch: Source tokens of one batch, padding included. Defaults to 1024.

    Raises:
        ValueError: If `max_length` is not from 1 to `model.max_length`.

    Source: Vaswani et al. 2017, §6.1.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        max_length: int | None = None,
        tokens_per_batch: int = 1024,
    ) -> None:
        if max_length is not None and not 1 <= max_length <= model.max_length:
            raise ValueError(
                f"`max_length` must be from 1 to the model's {model.max_length}. "
                f"Received: max_length={max_length}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.length_penalty = length_penalty
        self.max_length = max_length
        self.tokens_per_batch = tokens_per_batch
        self._search = compile_function(beam_search, model)

    def translate(self, sentences: Sequence[str], progress: bool = False) -> list[str]:
        """Returns the best translation of each sentence.

        Args:
            sentences: Any number of strings, of any lengths. A blank one is translated to "".
            progress: Whether to show a progress bar. Defaults to False.

        Returns:
            As many strings, in the same order.
        """
        return [best.text for (best,) in self.translate_nbest(sentences, progress=progress)]

    def translate_nbest(
        self, sentences: Sequence[str], n_best: int = 1, progress: bool = False
    ) -> list[list[Hypothesis]]:
        """Returns the `n_best` best translations of each sentence, with their scores.

        Args:
            sentences: Any number of strings, of any lengths.
            n_best: Translations per sentence, from 1 to `beam_size`. Defaults to 1.
            progress: Whether to show a progress bar. Defaults to False.

        Returns:
            One list per sentence, in the same order, each of `n_best` hypotheses that differ in
            their ids, best first. Those of a blank sentence are empty and score 0.

        Raises:
            TypeError: If `sentences` is a single string.
            ValueError: If `n_best` is out of its range.
        """
        if isinstance(sentences, str):
            raise TypeError(f"`sentences` must be a list of strings. Received: {sentences!r}")
        results = [[Hypothesis("", (), 0.0, 0.0, 0)] * n_best for _ in sentences]
        with tqdm(total=len(sentences), unit="sentence", disable=not progress) as bar:
            for batch in self._batches(self._encode(sentences)):
                found = self._translate_batch(batch, n_best)
                for index, hypotheses in zip(batch.indices, found, strict=False):
                    results[index] = hypotheses
                bar.update(len(batch.indices))
            bar.update(len(sentences) - int(bar.n))  # The blank ones.
        return results

    def _encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source ids with eos; none at all for a blank sentence."""
        longest = self.model.max_length - 1
        sources = self.tokenizer.encode_source([sentence.strip() for sentence in sentences])
        for index, pieces in enumerate(sources):
            if len(pieces) > longest:
                warnings.warn(
                    f"Sentence {index + 1} has {len(pieces)} pieces; "
                    f"only the first {longest} are translated.",
                    stacklevel=3,
                )
        return [[*pieces[:longest], self.tokenizer.eos_id] if pieces else [] for pieces in sources]

    def _batches(self, sources: list[list[int]]) -> Iterator["_Batch"]:
        """Longest first: what does not fit into the memory shows at once."""
        order = [index for index, source in enumerate(sources) if source]
        order.sort(key=lambda index: -len(sources[index]))
        while order:
            width = max(SMALLEST_WIDTH, _power_of_two(len(sources[order[0]])))
            size = min(max(1, self.tokens_per_batch // width), _power_of_two(len(order)))
            indices, order = order[:size], order[size:]
            yield self._batch(indices, sources, size, min(width, self.model.max_length))

    def _batch(
        self, indices: list[int], sources: list[list[int]], size: int, width: int
    ) -> "_Batch":
        source_ids = np.full((size, width), self.tokenizer.pad_id, "int32")
        max_lengths = np.ones(size, "int32")  # Rows that only fill the batch end at once.
        for row, index in enumerate(indices):
            source = sources[index]
            source_ids[row, : len(source)] = source
            max_lengths[row] = self._max_length(len(source))
        return _Batch(indices, source_ids, max_lengths, self._max_length(width))

    def _max_length(self, source_length: int) -> int:
        return self.max_length or min(source_length + EXTRA_LENGTH, self.model.max_length)

    def _translate_batch(self, batch: "_Batch", n_best: int) -> list[list[Hypothesis]]:
        result = self._search(
            batch.source_ids,
            batch.max_lengths,
            max_length=batch.max_length,
            beam_size=self.beam_size,
            length_penalty=self.length_penalty,
            n_best=n_best,
            bos_id=self.tokenizer.bos_id,
            eos_id=self.tokenizer.eos_id,
            pad_id=self.tokenizer.pad_id,
        )
        result = SearchResult(*map(ops.convert_to_numpy, result))
        return [self._hypotheses(result, row) for row in range(len(batch.indices))]

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


class _Batch(NamedTuple):
    """Sentences that go through the model together.

    Attributes:
        indices: Which sentences; there may be fewer of them than rows.
        source_ids: int32 `(B, S)`.
        max_lengths: int32 `(B,)`, most tokens of each translation.
        max_length: The largest that `max_lengths` may hold at this width.
    """

    indices: list[int]
    source_ids: np.ndarray
    max_lengths: np.ndarray
    max_length: int


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not less than `number`."""
    return 1 << (number - 1).bit_length()
