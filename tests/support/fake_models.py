"""Next-token models for tests of search: no weights, and probabilities that can be read off."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.layers.attention.cache import Cache

PAD, UNK, BOS, EOS = 0, 1, 2, 3


class BigramModel:
    """The next token depends on the last one alone.

    Args:
        probabilities: Of the next token by last token. Those that are missing are nearly 0.
        vocabulary_size: V.
    """

    max_length = 1024
    pad_id = PAD
    variables: Sequence[Any] = ()

    def __init__(self, probabilities: dict[int, dict[int, float]], vocabulary_size: int) -> None:
        table = np.full((vocabulary_size, vocabulary_size), 1e-9)
        for last, following in probabilities.items():
            table[last, list(following)] = list(following.values())
        self.table = np.log(table).astype("float32")

    def init_cache(self, source_ids: Any, max_length: int, beam_size: int = 1) -> Cache:
        return Cache()

    def step(self, token_ids: Any, cache: Any, position: Any) -> tuple[Any, Any]:
        return ops.take(ops.convert_to_tensor(self.table), token_ids, axis=0), cache


class PrefixModel:
    """The next token depends on the source and on every token before: one lost beam shows.

    The cache holds a number made of all of them, which picks a row of a random table.
    """

    ROWS = 1009
    max_length = 1024
    pad_id = PAD
    variables: Sequence[Any] = ()

    def __init__(self, vocabulary_size: int) -> None:
        generator = np.random.default_rng(5)
        self.table = 2 * generator.normal(size=(self.ROWS, vocabulary_size)).astype("float32")

    def init_cache(self, source_ids: Any, max_length: int, beam_size: int = 1) -> Cache:
        source = ops.sum(source_ids, axis=1)
        rows = ops.repeat(source[:, None], beam_size, axis=1)
        return Cache([{"row": rows}], {"source": source})

    def limit_vocabulary(self, cache: Cache, token_ids: Any) -> Cache:
        return cache._replace(sentence={**cache.sentence, "vocabulary": token_ids})

    def step(self, token_ids: Any, cache: Any, position: Any) -> tuple[Any, Any]:
        source = cache.sentence["source"][:, None]
        vocabulary = cache.sentence.get("vocabulary")
        if vocabulary is not None:
            token_ids = ops.take_along_axis(vocabulary, token_ids, axis=1)
        row = self._row(cache.beam[0]["row"], token_ids, position, source)
        logits = ops.take(ops.convert_to_tensor(self.table), row, axis=0)
        if vocabulary is not None:
            columns = ops.repeat(vocabulary[:, None], row.shape[1], axis=1)
            logits = ops.take_along_axis(logits, columns, axis=2)
            logits = ops.where(columns == PAD, -float("inf"), logits)
        return logits, cache._replace(beam=[{"row": row}])

    def log_probabilities(self, source_ids: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
        """Of the token after `prefix` (without bos), by NumPy."""
        source = row = sum(source_ids)
        for position, token in enumerate([BOS, *prefix]):
            row = self._row(row, token, position, source)
        logits = self.table[row].astype("float64")
        return logits - np.log(np.sum(np.exp(logits)))

    def _row(self, row: Any, token: Any, position: Any, source: Any) -> Any:
        return (31 * row + 7 * token + 3 * position + source) % self.ROWS
