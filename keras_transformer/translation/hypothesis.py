"""Parts of sentences and their translations: copies characters, and rates samples."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import IMPOSSIBLE

WORD_BEGIN = "▁"


class SourcePart(NamedTuple):
    """A sentence, or one part of an overlong sentence."""

    sentence: int  # index of the sentence
    number: int  # index of the part in its sentence
    ids: list[int]  # ids of the prefix or tag, the source pieces, then eos
    text: str  # without the tag
    first_word: int  # index of the word of the sentence in which the part begins
    is_copied: bool = False  # instead of translated, because no word is known
    before: int = 0  # number of ids before the pieces of the text


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        text: The translation.
        ids: Token ids of the translation, without eos.
        score: The value used to rank hypotheses. In beam search, the log-probability divided by the
            length penalty, plus the coverage penalty. In sampling, the log-probability. In minimum
            Bayes risk decoding, the mean chrF against all samples.
        log_probability: Log-probability in nats, eos included.
        length: Number of tokens, eos included.
        alignment: Sorted pairs of word indices (source, target), counted from 0. None if alignments
            were not requested. Words are separated by white space in the source sentence and in
            `text`.
        word_scores: The mean log-probability (nats) of the pieces of each word of `text`. None if
            they were not requested.
        attention: What the search of an engine keeps for the alignment, or None.
    """

    text: str
    ids: tuple[int, ...]
    score: float
    log_probability: float
    length: int
    alignment: tuple[tuple[int, int], ...] | None = None
    word_scores: tuple[float, ...] | None = None
    attention: Any = field(default=None, repr=False, compare=False)


# The hypotheses of each sentence or part, best first.
NBest = list[list[Hypothesis]]
# Fills a list of hypotheses if the search found too few.
NO_HYPOTHESIS = Hypothesis("", (), IMPOSSIBLE, IMPOSSIBLE, 0)


def expected_utilities(samples: Sequence[str]) -> dict[str, float]:
    """Rates each distinct sample by its mean sentence chrF (0 to 100) against all samples.

    The mean estimates the expected chrF against a translation drawn from the model, if the samples
    are translations of one sentence, drawn without `top_k` and `top_p`.

    Source: Eikema and Aziz 2020, §5; Popović 2015 for chrF (computed by sacrebleu).
    """
    from sacrebleu.metrics import CHRF

    score, counts = CHRF().sentence_score, Counter(samples)  # Equal samples are compared once.

    def similarity(x: str, y: str) -> float:  # chrF of two empty texts is 0 in sacrebleu.
        return 100.0 if x == y else score(x, [y]).score

    sums = {x: sum(n * similarity(x, y) for y, n in counts.items()) for x in counts}
    return {x: total / len(samples) for x, total in sums.items()}


def with_copies(
    tokenizer: Tokenizer, ids: Sequence[int], attention: np.ndarray, copies: Sequence[str | None]
) -> str:
    """Returns a translation in which words are replaced by unknown characters of the source.

    Row t, column s of `attention` is the attention of target piece t to source piece s, or to eos.
    If `copies[s]` is not None, it replaces the word whose pieces give most attention to source
    piece s, if their mean share is above one half. Attention to eos does not count.
    """
    target_pieces, text = tokenizer.target_pieces, ""
    pieces = [target_pieces[id] for id in ids]
    # Marks, and letters of scripts without spaces, are words of their own.
    is_caseless = [x.upper() == x.lower() and x != WORD_BEGIN for x in pieces]
    pairs = zip(pieces, is_caseless, [True, *is_caseless], strict=False)
    words = np.cumsum([x.startswith(WORD_BEGIN) or own or last for x, own, last in pairs])
    has_letter = np.array([any(map(str.isalnum, piece)) for piece in pieces], bool)
    shares = attention[: len(ids), : len(copies)]
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
    means = {word: shares[has_letter & (words == word)].mean(axis=0) for word in words[has_letter]}
    sources = np.full(len(ids), -1)
    for source in (index for index, copy in enumerate(copies) if copy and means):
        word = max(means, key=lambda word: means[word][source])
        if means[word][source] > 0.5:
            sources[words == word] = source
    for source, group in itertools.groupby(zip(sources, ids, strict=True), lambda x: x[0]):
        run = [id for _, id in group]
        space = " " if target_pieces[run[0]].startswith(WORD_BEGIN) else ""
        text += space + (tokenizer.decode_target([run])[0] if source < 0 else copies[source])
    return text.strip()
