"""Makes the pairs of words that train a `SkipGram`."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_transformer.errors import check_integers, check_range, check_sizes

Batch = tuple[dict[str, np.ndarray], np.ndarray]


def skip_gram_batches(
    sentences: Sequence[Sequence[int]],
    vocabulary_size: int,
    batch_size: int = 4_096,
    window: int = 5,
    negatives: int = 5,
    subsampling: float = 1e-3,
    seed: int = 0,
) -> Callable[[int], Iterator[Batch]]:
    """Makes the argument `batches` of `fit` for a `SkipGram`.

    Each pass over the sentences first removes words at random: a word with the share f of the text
    stays with the probability min(1, sqrt(subsampling / f)) (§2.3). Each remaining word is paired
    with its neighbors in a window whose radius is random, from 1 to `window`. Each pair gets
    `negatives` random words in place of the neighbor, drawn with probabilities proportional to
    count^0.75 (§2.2). The pairs depend only on `seed` and the index of the batch.

    Args:
        sentences: The ids of the words of each sentence, without padding. Pairs are made within a
            sentence.
        vocabulary_size: Number of words V. All ids are below V.
        batch_size: Number of pairs B per batch. A pass drops its last, incomplete batch.
        window: Largest distance of two neighbors, after the removal of words. Defaults to 5.
        negatives: Number of random words K per pair. Defaults to 5.
        subsampling: The share of the text above which words are removed. Defaults to 1e-3.
        seed: Seed of all random numbers, an integer >= 0.

    Returns:
        A function that takes the number of batches to skip and yields batches without end: the
        inputs of a `SkipGram` with N = 1 + K, and the labels, float32 `(B, 1 + K)`, of which the
        first column is 1.

    Raises:
        ValueError: If there is no sentence, if an id, a size or `subsampling` is out of range, or
            if a pass has too few pairs for a batch.
    """
    check_sizes(batch_size=batch_size, window=window, negatives=negatives)
    if not len(sentences):
        raise ValueError("`sentences` must not be empty.")
    if not subsampling > 0:
        raise ValueError(f"`subsampling` must be above 0. Received: subsampling={subsampling}")
    parts = [_word_ids(sentence, vocabulary_size) for sentence in sentences]
    words = np.concatenate(parts)
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    counts = np.bincount(words, minlength=vocabulary_size)
    keep = np.sqrt(subsampling * len(words) / np.maximum(counts, 1))[words]
    bounds = np.cumsum(counts**0.75)
    labels = np.zeros((batch_size, 1 + negatives), "float32")
    labels[:, 0] = 1.0

    def batch(pairs: np.ndarray, rng: np.random.Generator) -> Batch:
        drawn = rng.random((batch_size, negatives)) * bounds[-1]
        negative_words = np.searchsorted(bounds, drawn, side="right")
        contexts = np.concatenate([pairs[:, 1:], negative_words.astype("int32")], axis=1)
        return {"centers": pairs[:, 0], "contexts": contexts}, labels

    def stream(skipped: int) -> Iterator[Batch]:
        for number in itertools.count():
            rng = np.random.default_rng([seed, number])
            kept = rng.random(len(words)) < keep
            pairs = _pairs(words[kept], owners[kept], window, rng)
            count = len(pairs) // batch_size
            if count == 0:
                raise ValueError(
                    "`batch_size` must be at most the number of pairs in a pass. Received: "
                    f"batch_size={batch_size}, pairs={len(pairs)}"
                )
            for index in range(min(skipped, count), count):
                rows = pairs[index * batch_size : (index + 1) * batch_size]
                yield batch(rows, np.random.default_rng([seed, number, index]))
            skipped = max(0, skipped - count)

    return stream


def _word_ids(sentence: Sequence[int], vocabulary_size: int) -> np.ndarray:
    ids = np.asarray(sentence)
    check_integers(sentences=ids)
    check_range(0, vocabulary_size, sentences=ids)
    return ids.astype("int32")


def _pairs(
    words: np.ndarray, owners: np.ndarray, window: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns all pairs of a center and a neighbor, int32 `(P, 2)`, in random order.

    `owners` has the index of the sentence of each word.
    """
    radius = rng.integers(1, window + 1, len(words))
    pairs = []
    for distance in range(1, window + 1):
        left, right = words[:-distance], words[distance:]
        same_sentence = owners[:-distance] == owners[distance:]
        for center, neighbor, reach in (
            (left, right, radius[:-distance]),
            (right, left, radius[distance:]),
        ):
            chosen = same_sentence & (reach >= distance)
            pairs.append(np.stack([center[chosen], neighbor[chosen]], axis=1))
    return rng.permutation(np.concatenate(pairs))
