"""Defines `ListSearch`, which runs the searches of `Translator` and `Generator`."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_transformer.capabilities import Capabilities
from keras_transformer.decoding.batch_search import BatchSearch
from keras_transformer.decoding.batches import LengthBatch, length_batches, padded
from keras_transformer.decoding.decoding_loop import Strategy, make_strategy
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.decoding.request import Request, SearchResult
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.token_rules import NO_TOKEN
from keras_transformer.translation.hypothesis import Hypothesis, NBest

# Batches run at the same time, because a single one leaves cores or the accelerator idle at times.
CONCURRENT_BATCHES = 3


class ListSearch:
    """Searches lists of sources of any lengths, in batches of few different shapes.

    `bos_id` is `NO_TOKEN` for a language model. `decode` converts lists of ids to strings.
    """

    def __init__(
        self, model: Any, bos_id: int, eos_id: int, decode: Callable[[list[list[int]]], list[str]]
    ) -> None:
        if Capabilities.of(model).reads_prompt != (bos_id == NO_TOKEN):
            raise ValueError(
                "`Translator` needs a sequence-to-sequence model, `Generator` a language model. "
                f"Received: model={type(model).__name__}"
            )
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

    def hypotheses(self, result: SearchResult, row: int) -> list[Hypothesis]:
        """Returns the hypotheses in one row of a `SearchResult`."""
        lengths = result.lengths[row].tolist()
        ids = zip(result.ids[row].tolist(), lengths, strict=True)
        pieces = [[id for id in own[:length] if id != self._eos_id] for own, length in ids]
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
        advance: Callable[[list[int]], Any],
        seed: int = 0,
        sample_indices: Sequence[int] = (),
        fields: Callable[[LengthBatch], dict[str, Any]] = lambda _: {},
    ) -> NBest:
        """Returns the hypotheses of each source, which has at most `longest` tokens.

        A batch has at most `tokens_per_batch` source tokens, padding included. After each batch,
        `advance` is called with the indices of its sources. `fields` returns further fields of the
        `Request` of a batch. Source i draws the random numbers `sample_indices[i]` of `seed`.
        """
        strategy = self.strategy(options)
        shapes = self.batch_search.shapes(len(sources), strategy)
        batches = list(length_batches([*map(len, sources)], tokens_per_batch, longest, shapes))
        found: NBest = [[]] * len(sources)

        def search(batch: LengthBatch) -> list[int]:
            indices, rows, width = batch
            request, length = self.request([sources[i] for i in indices], rows, width, limit)
            request = request._replace(**fields(batch))
            if isinstance(options, SamplingOptions):
                drawn = [sample_indices[i] for i in indices]
                numbers = random_numbers(seed, drawn, options.num_samples, length, rows)
                request = request._replace(random_numbers=numbers)
            result = self.batch_search(request, strategy, length, shapes)
            for row, index in enumerate(indices):
                found[index] = self.hypotheses(result, row)
            return indices

        with ThreadPoolExecutor(CONCURRENT_BATCHES) as pool:
            for indices in (pool.map if len(batches) > 1 else map)(search, batches):
                advance(indices)
        return found
