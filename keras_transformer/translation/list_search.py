"""Defines `ListSearch`, which runs the searches of `Translator` and `Generator`."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_transformer.decoding.batch_search import BatchSearch, LengthBatch, length_batches, padded
from keras_transformer.decoding.decoding_loop import Strategy, make_strategy
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.decoding.steps import Request
from keras_transformer.translation.hypothesis import Hypothesis

# Batches run at the same time, because a single one leaves cores or the accelerator idle at times.
CONCURRENT_BATCHES = 3


class ListSearch:
    """Searches lists of sources of any lengths, in batches of few different shapes.

    Args:
        model: A model that implements `Searchable`.
        bos_id: Id of the beginning of a hypothesis.
        eos_id: Id of the end of a hypothesis.
        decode: Function that converts a list of lists of ids to a list of strings.
    """

    def __init__(
        self, model: Any, bos_id: int, eos_id: int, decode: Callable[[list[list[int]]], list[str]]
    ) -> None:
        self.model, self._bos_id, self._eos_id, self._decode = model, bos_id, eos_id, decode
        self.batch_search = BatchSearch(model)

    def strategy(self, options: SearchOptions | SamplingOptions) -> Strategy:
        """Returns the beam search or sampling for `options`."""
        return make_strategy(self.model, options, bos_id=self._bos_id, eos_id=self._eos_id)

    def request(
        self, sources: Sequence[Sequence[int]], rows: int, width: int, limit: Callable[[int], int]
    ) -> tuple[Request, int]:
        """Returns a request of padded sources, and the maximum length of its hypotheses.

        `limit` returns the maximum length of a hypothesis for a source of so many tokens.
        """
        max_lengths = np.ones(rows, "int32")  # Padding rows end after one token.
        max_lengths[: len(sources)] = [limit(len(ids)) for ids in sources]
        source_ids = padded(sources, rows, width, self.model.pad_id)
        return Request(source_ids, max_lengths), limit(width)

    def hypotheses(self, result: Any, row: int) -> list[Hypothesis]:
        """Returns the hypotheses in one row of a `SearchResult`."""
        lengths = result.lengths[row].tolist()
        pieces = [
            [id for id in ids[:length].tolist() if id != self._eos_id]
            for ids, length in zip(result.ids[row], lengths, strict=True)
        ]
        scores = result.scores[row].tolist(), result.log_probabilities[row].tolist()
        columns = self._decode(pieces), map(tuple, pieces), *scores, lengths
        return [Hypothesis(*x) for x in zip(*columns, strict=True)]

    def __call__(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions | SamplingOptions,
        *,
        limit: Callable[[int], int],
        longest: int,
        tokens_per_batch: int,
        fields: Callable[[LengthBatch, int], dict[str, Any]],
        advance: Callable[[list[int]], Any],
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each source.

        Args:
            sources: The ids of each source.
            options: The options of beam search or sampling.
            limit: As in `request`.
            longest: Maximum number of tokens of a source.
            tokens_per_batch: Maximum number of source tokens of a batch, padding included.
            fields: Function of a batch and the maximum length of its hypotheses that returns
                further fields of the `Request`.
            advance: Function that is called after each batch, with the indices of its sources.
        """
        strategy = self.strategy(options)
        shapes = self.batch_search.shapes(len(sources), strategy)
        batches = list(length_batches([*map(len, sources)], tokens_per_batch, longest, shapes))
        found: list[list[Hypothesis]] = [[]] * len(sources)

        def search(batch: LengthBatch) -> list[int]:
            indices, rows, width = batch
            request, length = self.request([sources[i] for i in indices], rows, width, limit)
            request = request._replace(**fields(batch, length))
            result = self.batch_search(request, strategy, length, shapes)
            for row, index in enumerate(indices):
                found[index] = self.hypotheses(result, row)
            return indices

        with ThreadPoolExecutor(CONCURRENT_BATCHES) as pool:
            for indices in (pool.map if len(batches) > 1 else map)(search, batches):
                advance(indices)
        return found
