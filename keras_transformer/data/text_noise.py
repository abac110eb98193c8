"""Text noise: changes the training text as people type it, with typos or without a final mark."""

import math
import re
from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import numpy as np

from keras_transformer.data.token_store import SIDES, Sentences
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import UNK_ID

_LETTERS = re.compile(r"[^\W\d_]{4,}")  # words in which typos are made
_FINAL_MARKS = re.compile(r"\s*[.!?…。！？]+$")  # noqa: RUF001
# The probabilities of these changes. The rest are typos, because `WordForms` reads the others.
_LOWER_CASE, _NO_FINAL_MARK = 0.05, 0.05
_WORDS_PER_TYPO = 8

_Pair = tuple[str, str]


class TextNoise:
    """Changes parallel text at random, so that a model learns to read what people type in a hurry.

    A changed source has typos (one for each eight words or fewer), or only lower case, or no final
    mark. A typo swaps, leaves out, repeats or replaces letters inside a word of at least four that
    is a piece of its own, because a rare word with a typo teaches nothing, or inside any such word
    if no piece is one. The target stays as it is, but loses its final mark together with the
    source. A pair with an unknown character does not change.

    Args:
        tokenizer: The tokenizer of the text.
        share: Probability that a pair is changed, from 0 to 1.
        first_step: Earlier steps of a `BatchPlan` have no noise, which would slow down what a model
            learns first. Defaults to 0.

    Source: Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine
        Translation", whose changes of letters these are
    """

    def __init__(self, tokenizer: Tokenizer, share: float, first_step: int = 0) -> None:
        self.tokenizer, self.share, self.first_step = tokenizer, share, first_step
        self._tags = {*tokenizer.tag_ids.values()}
        pieces = tokenizer.source_pieces
        self._words = {x[1:] for x in pieces if x[:1] == "▁" and _LETTERS.fullmatch(x, 1)}

    def draw(self, text: Sentences, pairs: np.ndarray, most: Sequence[Any], seed: str) -> Sentences:
        """Returns the sentences with indices `pairs`, a function of the arguments.

        A pair that would have more pieces than `most` allows on a side does not change. `most` is
        that of `PieceSampler.draw`.
        """
        random = Random(f"noise {seed}")
        limits = [np.broadcast_to(limit, len(pairs)) for limit in most]
        rows = [text.rows(side, pairs) for side in SIDES]
        known = [UNK_ID not in [*source, *target] for source, target in zip(*rows, strict=True)]
        chosen = [x for x in range(len(pairs)) if random.random() < self.share and known[x]]
        sources, targets = ([row[x] for x in chosen] for row in rows)
        heads, texts = self._split(sources)
        pairs_of_text = zip(texts, self.tokenizer.decode_target(targets), strict=True)
        changed = [_change(pair, self._words, random) for pair in pairs_of_text]
        new_sources = self.tokenizer.encode_source([source for source, _ in changed])
        new_targets = self.tokenizer.encode_target([target for _, target in changed])
        new_pairs = zip(chosen, heads, new_sources, new_targets, strict=True)
        for place, head, source, target in new_pairs:
            new = [*head, *source], [*self.tokenizer.target_prefix_ids, *target]
            if all(0 < len(ids) <= limit[place] for ids, limit in zip(new, limits, strict=True)):
                rows[0][place], rows[1][place] = new
        return Sentences.from_rows(dict(zip(SIDES, rows, strict=True)), text.source_eos)

    def _split(self, sources: list[list[int]]) -> tuple[list[list[int]], list[str]]:
        """Returns the prefix or tag before each source, and the text after it."""
        prefix = self.tokenizer.source_prefix_ids
        sizes = [
            len(prefix) if prefix and ids[: len(prefix)] == prefix else int(ids[0] in self._tags)
            for ids in sources
        ]
        split = [(ids[:size], ids[size:]) for ids, size in zip(sources, sizes, strict=True)]
        texts = self.tokenizer.decode([ids for _, ids in split], "source") if split else []
        return [head for head, _ in split], texts


def _change(pair: _Pair, known: Collection[str], random: Random) -> _Pair:
    """Returns a pair after one kind of change."""
    source, target = pair
    kind = random.random()
    if kind < _LOWER_CASE:
        return source.lower(), target
    if kind < _LOWER_CASE + _NO_FINAL_MARK:
        return _FINAL_MARKS.sub("", source), _FINAL_MARKS.sub("", target)
    words = [word for word in _LETTERS.finditer(source) if word[0] in known or not known]
    count = min(len(words), math.ceil(len(source.split()) / _WORDS_PER_TYPO))
    for word in sorted(random.sample(words, count), key=lambda x: -x.start()):
        source = source[: word.start()] + _typo(word[0], random) + source[word.end() :]
    return source, target


def _typo(word: str, random: Random) -> str:
    """Returns a word with one wrong letter inside, or two that are swapped."""
    place = random.randrange(1, len(word) - 1)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    return random.choice(
        [
            before + after[0] + letter + after[1:],
            before + after,
            before + letter + letter + after,
            before + random.choice(word).lower() + after,
        ]
    )
