"""Examines parallel text: counts, lengths, duplicates, characters and scripts."""

import random
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.filters import is_uneven
from keras_transformer.data.held_out import sentence_key
from keras_transformer.data.text_files import Pair

# Pairs with more than this number of times the bytes of the other side are seldom translations.
MAX_LENGTH_RATIO = 9
_SAMPLE_SIZE = 10_000


@dataclass(frozen=True)
class SideReport:
    """Facts about the source or target sentences. Pairs with an empty sentence do not count."""

    different: int  # number of sentences that differ in more than case, spaces and punctuation
    median: int  # length in words, separated by white space
    percentile_95: int
    longest: int
    characters: int  # number of different characters
    scripts: dict[str, float]  # share of the letters in the sample, at least 1 %: {"Latin": 1.0}


@dataclass(frozen=True)
class CorpusReport:
    """Facts about a corpus, in numbers of sentence pairs."""

    pairs: int  # without an empty sentence
    empty: int
    repeated: int  # that occurred before
    equal: int  # whose target is the source
    uneven: int  # with a side of more than `MAX_LENGTH_RATIO` times the bytes of the other
    wrong_language: int | None  # estimated from the sample; None without a detector
    first: Pair | None
    characters: int  # different ones on both sides
    source: SideReport
    target: SideReport
    sample: list[Pair]  # random, at most 10,000; the same for the same text

    @property
    def is_doubtful(self) -> bool:
        """Whether so many sentences are of another language that the languages may be wrong."""
        return (self.wrong_language or 0) * 5 > self.pairs

    @property
    def notices(self) -> list[str]:
        """Signs that the text is not ready for training, as sentences."""
        found = []
        if self.first and all(map(str.isidentifier, self.first)) and self.source.median > 2:
            found.append(f"the first pair may be a header: {' = '.join(self.first)}")
        if self.is_doubtful:
            found.append("many sentences are of another language: are the two languages right?")
        marked = sum("@@ " in " ".join(pair) for pair in self.sample) / max(1, len(self.sample))
        if marked > 0.01:
            advice = "have the marks @@ of BPE: `sed -E 's/@@( |$)//g'` joins subwords"
            found.append(f"{marked:.0%} of the pairs {advice}")
        return found


class _Side:
    def __init__(self) -> None:
        self.lengths = array("i")
        self.characters: set[str] = set()
        self.hashes = array("q")

    def add(self, sentence: str) -> None:
        self.lengths.append(len(sentence.split()))
        self.characters.update(sentence)
        self.hashes.append(hash(sentence_key(sentence)))

    def report(self, sample: Iterable[str]) -> SideReport:
        shares = np.array([0.5, 0.95, 1.0])
        lengths = np.quantile(self.lengths or [0], shares, method="inverted_cdf")
        median, high, longest = lengths.tolist()
        characters, scripts = len(self.characters), _scripts(sample)
        return SideReport(_different(self.hashes), median, high, longest, characters, scripts)


def examine(
    pairs: Iterable[Pair], is_wrong_language: Callable[[Pair], bool] | None = None
) -> CorpusReport:
    """Reads a corpus once. Needs 32 bytes of memory per pair, and the memory of the sample."""
    source_side, target_side, hashes = _Side(), _Side(), array("q")
    rng, sample = random.Random(1), list[Pair]()
    empty = equal = uneven = 0
    first = None
    for source, target in Bar("reading", iterable=pairs, unit=" pairs", delay=1):
        if not source.strip() or not target.strip():
            empty += 1
            continue
        first = first or (source, target)
        hashes.append(hash((source, target)))
        equal += source == target
        uneven += is_uneven((source, target), MAX_LENGTH_RATIO)
        source_side.add(source)
        target_side.add(target)
        if len(hashes) <= _SAMPLE_SIZE:
            sample.append((source, target))
        elif (place := rng.randrange(len(hashes))) < _SAMPLE_SIZE:
            sample[place] = (source, target)
    wrong = None
    if is_wrong_language:
        wrong = round(sum(map(is_wrong_language, sample)) * len(hashes) / max(1, len(sample)))
    return CorpusReport(
        pairs=len(hashes),
        empty=empty,
        repeated=len(hashes) - _different(hashes),
        equal=equal,
        uneven=uneven,
        wrong_language=wrong,
        first=first,
        characters=len(source_side.characters | target_side.characters),
        source=source_side.report(source for source, _ in sample),
        target=target_side.report(target for _, target in sample),
        sample=sample,
    )


def _different(hashes: array) -> int:
    return len(np.unique(np.frombuffer(hashes, np.int64))) if hashes else 0


def _scripts(sentences: Iterable[str]) -> dict[str, float]:
    """Returns scripts by the first word of their letters' Unicode names, most frequent first."""
    letters = Counter("".join(sentences))
    found: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            found[unicodedata.name(letter, "unknown").split()[0].capitalize()] += count
    shares = {script: count / found.total() for script, count in found.most_common()}
    return {script: share for script, share in shares.items() if share >= 0.01}
