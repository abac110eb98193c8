"""Examines parallel text: counts, lengths, duplicates, characters and scripts."""

import random
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.corpus import Pair
from keras_transformer.data.held_out import sentence_key

_SAMPLE_SIZE = 10_000


@dataclass(frozen=True)
class SideReport:
    """Facts about the source or target sentences. Pairs with an empty sentence do not count.

    Attributes:
        different: Number of different sentences, apart from case, spaces and punctuation.
        median, percentile_95, longest: Lengths of sentences in words, separated by white space.
        characters: Number of different characters.
        scripts: Share of the letters in each script with at least 1 %, such as {"Latin": 1.0}.
            Measured on the sample.
    """

    different: int
    median: int
    percentile_95: int
    longest: int
    characters: int
    scripts: dict[str, float]


@dataclass(frozen=True)
class CorpusReport:
    """Facts about a corpus.

    Attributes:
        pairs: Number of sentence pairs without an empty sentence.
        empty: Number of pairs with an empty sentence.
        repeated: Number of pairs that occurred before.
        equal: Number of pairs whose target is the source.
        characters: Number of different characters on both sides.
        source, target: Facts about each side.
        sample: Random pairs, at most 10,000. The same text gives the same sample.
    """

    pairs: int
    empty: int
    repeated: int
    equal: int
    characters: int
    source: SideReport
    target: SideReport
    sample: list[Pair]


class _Side:
    def __init__(self) -> None:
        self.lengths: Counter[int] = Counter()
        self.characters: set[str] = set()
        self.hashes = array("q")

    def add(self, sentence: str) -> None:
        self.lengths[len(sentence.split())] += 1
        self.characters.update(sentence)
        self.hashes.append(hash(sentence_key(sentence)))

    def report(self, sample: Iterable[str]) -> SideReport:
        median, high, longest = (_percentile(self.lengths, share) for share in (0.5, 0.95, 1.0))
        counts = _different(self.hashes), median, high, longest, len(self.characters)
        return SideReport(*counts, _scripts(sample))


def examine(pairs: Iterable[Pair], progress: bool = True) -> CorpusReport:
    """Reads a corpus once. Needs 24 bytes of memory per pair, and the memory of the sample.

    Example:

    >>> examine(read_parallel("corpus.en", "corpus.de")).pairs
    29000

    Args:
        pairs: (source, target) sentences, such as the result of `read_parallel`.
        progress: Whether to show progress on stderr. Defaults to True.
    """
    source_side, target_side, hashes = _Side(), _Side(), array("q")
    rng, sample = random.Random(1), list[Pair]()
    empty = equal = 0
    for pair in Bar("reading", iterable=pairs, unit=" pairs", delay=1, disable=not progress):
        source, target = pair
        if not source.strip() or not target.strip():
            empty += 1
            continue
        hashes.append(hash(pair))
        equal += source == target
        source_side.add(source)
        target_side.add(target)
        if len(hashes) <= _SAMPLE_SIZE:
            sample.append(pair)
        elif (place := rng.randrange(len(hashes))) < _SAMPLE_SIZE:
            sample[place] = pair
    return CorpusReport(
        pairs=len(hashes),
        empty=empty,
        repeated=len(hashes) - _different(hashes),
        equal=equal,
        characters=len(source_side.characters | target_side.characters),
        source=source_side.report(source for source, _ in sample),
        target=target_side.report(target for _, target in sample),
        sample=sample,
    )


def _different(hashes: array) -> int:
    return len(np.unique(np.frombuffer(hashes, np.int64))) if hashes else 0


def _percentile(counts: Counter[int], share: float) -> int:
    """Returns the smallest length that is at least as long as this share of the sentences."""
    reached = np.cumsum([counts[length] for length in sorted(counts)])
    return sorted(counts)[np.searchsorted(reached, share * counts.total())] if counts else 0


def _scripts(sentences: Iterable[str]) -> dict[str, float]:
    """Returns scripts by the first word of their letters' Unicode names, most frequent first."""
    letters = Counter("".join(sentences))
    found: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            found[unicodedata.name(letter, "unknown").split()[0].capitalize()] += count
    shares = {script: count / found.total() for script, count in found.most_common()}
    return {script: share for script, share in shares.items() if share >= 0.01}
