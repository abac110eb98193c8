"""Splits a corpus into training, validation and test text without a shared sentence."""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import regex

from keras_transformer._progress import Bar
from keras_transformer.data.text_files import Pair
from keras_transformer.errors import UserError

# Candidates per held-out pair. A candidate that shares its target with the other split is skipped.
# If too few remain, all pairs are candidates.
_CANDIDATES = 2
_IGNORED = regex.compile(r"[^\p{L}\p{M}\p{N}]+")  # punctuation, symbols and spaces


@dataclass
class HeldOut:
    """Held-out pairs for validation and test, and all pairs of the corpus.

    `dropped` is the number of pairs that are in no split, because they share a sentence with a
    held-out pair. It is known when the iteration over `train` ends.
    """

    validation: list[Pair]
    test: list[Pair]
    pairs: Iterable[Pair]
    dropped: int = 0

    def train(self) -> Iterator[Pair]:
        """Yields the pairs that share neither source nor target with a held-out pair."""
        held = [*self.validation, *self.test]
        sources, targets = (set(map(sentence_key, side)) for side in zip(*held, strict=True))
        refused = 0
        for source, target in _progress(self.pairs):
            if sentence_key(source) in sources or sentence_key(target) in targets:
                refused += 1
            else:
                yield source, target
        self.dropped = refused - len(held)


def hold_out(pairs: Iterable[Pair], validation: int, test: int, seed: int = 1) -> HeldOut:
    """Holds out random pairs of a corpus for validation and test.

    No source sentence and no target sentence is in two splits. Sentences that differ only in case,
    spaces and punctuation count as the same sentence. So training drops all pairs that share a
    sentence with a held-out pair. A held-out source sentence has one translation, the first.

    The choice depends on `seed` and on the set of source sentences, not on their order. It keeps 8
    bytes per pair in memory, and twice the held-out pairs, or all if many have the same target. It
    iterates over the pairs two or three times, and `HeldOut.train` once more.

    Raises:
        UserError: If the held-out pairs would be more than half of the different source sentences,
            or if too few pairs have a target that is not in the test split.
    """
    count = validation + test
    hashes = np.unique(np.fromiter((value for value, _ in _hashed(pairs, seed)), np.uint64))
    if count > len(hashes) // _CANDIDATES:
        raise UserError(
            f"data.held_out: at most half of the {len(hashes):,} different source sentences can be "
            f"held out. Received: {validation:,} for validation and {test:,} for test"
        )
    for number in (_CANDIDATES * count, len(hashes)):
        candidates: dict[int, Pair] = {}  # the first pair of each source with a low hash
        for value, pair in _hashed(pairs, seed):
            if value <= hashes[number - 1]:
                candidates.setdefault(value, pair)
        in_order = [candidates[value] for value in sorted(candidates)]
        chosen_test, rest = in_order[:test], in_order[test:]
        targets = {sentence_key(target) for _, target in chosen_test}
        rest = [pair for pair in rest if sentence_key(pair[1]) not in targets]
        if len(rest) >= validation:
            return HeldOut(rest[:validation], chosen_test, pairs)
    raise UserError(
        f"data.held_out: only {len(rest):,} source sentences have a translation that is not in the "
        "test text, because many have the same translation: hold out fewer. "
        f"Received: {validation:,} for validation and {test:,} for test"
    )


def _progress(pairs: Iterable[Pair]) -> Iterable[Pair]:
    return Bar("splitting the text", iterable=pairs, unit="pair", delay=1, leave=False)


def sentence_key(text: str) -> str:
    """Returns the letters and digits of a sentence, without case, or else its other characters."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return _IGNORED.sub("", text) or "".join(text.split())


def _hashed(pairs: Iterable[Pair], seed: int) -> Iterator[tuple[int, Pair]]:
    """Yields the pairs without an empty sentence, each after a hash of its source and the seed."""
    for source, target in _progress(pairs):
        if source.strip() and target.strip():
            key = f"{seed} {sentence_key(source)}".encode()
            yield int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()), (source, target)
