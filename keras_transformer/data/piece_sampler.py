"""Subword regularization: draws the pieces of each sentence at random."""

import itertools
import math
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from keras_transformer.data.token_store import SIDES, Sentences
from keras_transformer.data.tokenizer import Tokenizer

_MAX_WORDS = 2**15  # whose segmentations are kept in memory, about 2.5 kB each, per side

# For each place in the text of a word: the ids of the pieces that may follow, and the cumulative
# probabilities of all but the last. Tuples, because Python's garbage collector ignores those.
_Lattice = tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]


class PieceSampler:
    """Draws the pieces of parallel text at random, with the same text (Kudo 2018, §3).

    The probability of a segmentation is proportional to the product of the probabilities of its
    pieces in the unigram model, to the power of `alpha`. All segmentations of a sentence can be
    drawn (l = ∞ in the paper). Prefixes, and pieces that are not text, such as unk, stay as they
    are. SentencePiece draws from the same distribution, but it cannot be given a seed for a call.

    Args:
        tokenizer: A tokenizer with unigram models.
        alpha: Exponent of the probabilities, at least 0. With 0, all segmentations are equally
            probable. The larger it is, the more often the best one is drawn.
    """

    first_step = 0  # of a `BatchPlan`

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        self._words = {side: _Words(tokenizer, side, alpha) for side in SIDES}

    def draw(self, text: Sentences, pairs: np.ndarray, most: Sequence[Any], seed: str) -> Sentences:
        """Returns the sentences with indices `pairs`, a function of the arguments.

        A source or target with more pieces than `most` allows on its side keeps its best
        segmentation. `most` has a number for each side, or one for each sentence of the side.
        """
        random, rows = Random(seed).random, {}
        for side, limit in zip(SIDES, most, strict=True):
            best = text.rows(side, pairs)
            drawn = [self._words[side].draw(sentence, random) for sentence in best]
            choices = zip(drawn, best, np.broadcast_to(limit, len(pairs)), strict=True)
            rows[side] = [x if len(x) <= most else y for x, y, most in choices]
        return Sentences.from_rows(rows, text.source_eos)


class _Words:
    """Draws segmentations of the words of one side, which are independent of each other."""

    def __init__(self, tokenizer: Tokenizer, side: str, alpha: float) -> None:
        scores, prefix = tokenizer.scores(side), getattr(tokenizer, f"{side}_prefix_ids")
        self._pieces: list[str] = getattr(tokenizer, f"{side}_pieces")
        self._ids_and_scores = {
            piece: (id, alpha * score)
            for id, (piece, score) in enumerate(zip(self._pieces, scores, strict=True))
            if score < 0 and id not in prefix  # The score of pieces that are not text is 0.
        }
        self._longest = max(map(len, self._ids_and_scores))
        self._is_text = [piece in self._ids_and_scores for piece in self._pieces]
        self._lattice_of_word = lru_cache(_MAX_WORDS)(self._lattice)

    def draw(self, sentence: list[int], random: Callable[[], float]) -> list[int]:
        """Returns other pieces of the same text. `random` returns numbers from 0 to 1."""
        drawn = []
        is_text, neighbours = self._is_text, itertools.pairwise(sentence)
        joins = (is_text[x] and is_text[y] and self._pieces[y][0] != "▁" for x, y in neighbours)
        begins = [0, *(place for place, join in enumerate(joins, start=1) if not join)]
        for begin, end in itertools.pairwise([*begins, len(sentence)]):
            lattice, place = self._lattice_of_word(tuple(sentence[begin:end])), 0
            while place < len(lattice):
                ids, cumulative = lattice[place]
                id = ids[bisect(cumulative, random())]
                place += len(self._pieces[id])
                drawn.append(id)
        return drawn

    def _lattice(self, word: tuple[int, ...]) -> _Lattice:
        """Returns all segmentations of a word. A piece that is not text has only itself."""
        if not self._is_text[word[0]]:
            return ((word, ()),)
        text = "".join(self._pieces[id] for id in word)
        # The logarithm of the sum of the products of probabilities, over all segmentations of the
        # text from each place on.
        totals = [-math.inf] * len(text) + [0.0]
        lattice = []
        for begin in reversed(range(len(text))):
            ends = range(begin + 1, min(begin + self._longest, len(text)) + 1)
            found = [(self._ids_and_scores.get(text[begin:end]), end) for end in ends]
            ways = [(*x, end) for x, end in found if x and totals[end] > -math.inf]
            logs = [score + totals[end] for _, score, end in ways]
            largest = max(logs, default=0.0)
            sums = list(itertools.accumulate(math.exp(x - largest) for x in logs))
            if sums:
                totals[begin] = largest + math.log(sums[-1])
            ids = tuple(id for id, *_ in ways)
            lattice.append((ids, tuple(x / sums[-1] for x in sums[:-1])))
        return tuple(lattice[::-1])
