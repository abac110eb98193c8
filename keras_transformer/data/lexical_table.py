"""Learns which target tokens translate each source token."""

from typing import Any

import numpy as np

from keras_transformer.data.token_store import SIDES

# Maximum number of pairs of a source token and a target token in the same pair of sentences that
# are learned from. They need about 75 bytes each. In a longer text, sentences are chosen evenly.
MOST_TOKEN_PAIRS = 50_000_000
ITERATIONS = 5


def lexical_table(
    store: Any,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    num_translations: int,
    most_token_pairs: int = MOST_TOKEN_PAIRS,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates p(target token | source token) with IBM model 1.

    Model 1 has an empty source word, which explains target tokens that translate no source token.

    Args:
        store: A `TokenStore`.
        source_vocabulary_size: Number V of tokens in the source vocabulary.
        target_vocabulary_size: Number W of tokens in the target vocabulary.
        num_translations: Number M of translations of each source token.
        most_token_pairs: Maximum number of pairs of tokens to learn from. Defaults to 50 million.

    Returns:
        A tuple `(counts, table)`. The array `counts` contains the number of occurrences of each
        target token, int64 `(W,)`. The array `table` contains the ids of the M most probable
        translations of each source token, best first, int32 `(V, M)`. Rows of fewer than M
        translations are padded with -1.

    Source: Brown et al. 1993, §4.1.
    """
    sources, targets, positions = _token_pairs(store, source_vocabulary_size, most_token_pairs)
    keys, places = np.unique(sources * target_vocabulary_size + targets, return_inverse=True)
    source_of_key = keys // target_vocabulary_size
    probabilities = np.ones(len(keys))
    for _ in range(ITERATIONS):
        shares = probabilities[places]
        shares /= np.bincount(positions, shares)[positions]
        expected = np.bincount(places, shares, len(keys))
        totals = np.bincount(source_of_key, expected, source_vocabulary_size + 1)
        probabilities = expected / totals[source_of_key]
    is_real = source_of_key < source_vocabulary_size
    best = _best(keys[is_real], probabilities[is_real], target_vocabulary_size, num_translations)
    table = np.full((source_vocabulary_size, num_translations), -1, "int32")
    table[best[0], best[1]] = best[2]
    counts = np.bincount(
        store.pieces("target", np.arange(len(store))), minlength=target_vocabulary_size
    )
    return counts, table


def _token_pairs(store: Any, empty_id: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the source id, target id and target position of each pair of tokens, int64 `(P,)`.

    Each target position is also paired with the empty source word `empty_id`.
    """
    source_lengths, target_lengths = (store.lengths(side, np.arange(len(store))) for side in SIDES)
    sizes = (source_lengths + 1) * target_lengths
    step = max(1, -(-int(sizes.sum()) // most))
    chosen = np.arange(0, len(store), step)
    source_lengths, target_lengths = source_lengths[chosen] + 1, target_lengths[chosen]
    starts = np.cumsum(source_lengths) - source_lengths
    source_ids = np.insert(
        store.pieces("source", chosen).astype("int64"), starts - np.arange(len(chosen)), empty_id
    )
    target_ids = store.pieces("target", chosen).astype("int64")
    per_position = np.repeat(source_lengths, target_lengths)
    positions = np.repeat(np.arange(len(target_ids)), per_position)
    first = np.repeat(np.repeat(starts, target_lengths), per_position)
    begun = np.cumsum(per_position) - per_position
    offset = np.arange(len(positions)) - np.repeat(begun, per_position)
    return source_ids[first + offset], target_ids[positions], positions


def _best(
    keys: np.ndarray, probabilities: np.ndarray, size: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns source id, rank and target id of the `count` best translations of each source id."""
    sources, targets = np.divmod(keys, size)
    order = np.lexsort((-probabilities, sources))
    sources, targets = sources[order], targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    is_best = ranks < count
    return sources[is_best], ranks[is_best], targets[is_best]
