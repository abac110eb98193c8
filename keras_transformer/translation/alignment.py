"""Aligns the words of a sentence and its translation by the attention between their pieces."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from keras_transformer.translation.hypothesis import SourcePart
from keras_transformer.translation.long_lines import CJK, SOUTH_EAST_ASIAN

Offsets = list[tuple[int, int]]  # the first character of each word, and that after its last

_LETTER = rf"(?:(?!{CJK}|{SOUTH_EAST_ASIAN})\w)"
# Words, numbers such as 1,299.50, characters of scripts without spaces, and marks.
_TOKEN = regex.compile(
    rf"{CJK}|{SOUTH_EAST_ASIAN}\p{{M}}*|\d+(?:[.,:/\-]\d+)*+(?!\w)"
    rf"|{_LETTER}+(?:['’]{_LETTER}+)*|[^\w\s]"
)
# A word that all target words attend to, such as a mark, counts less. Smooths words of little sum.
_SMOOTHING = 0.1


class TokenAlignment(NamedTuple):
    """Which words and numbers of a text and its translation belong together.

    The offsets are those of characters. `shares`, float `(T, S)`, is the attention of T words of
    the translation to S words of the source, normalized by `word_shares`, and then to rows of sum
    1.
    """

    source: Offsets
    target: Offsets
    shares: np.ndarray


class AlignedPart(NamedTuple):
    """A part of a sentence, its translation, their alignment, and the scores of words, if any."""

    part: SourcePart
    text: str
    alignment: TokenAlignment
    word_scores: tuple[float, ...] = ()


def words(text: str) -> Offsets:
    """Returns the offsets of the words that white space separates."""
    return [x.span() for x in regex.finditer(r"\S+", text)]


def tokens(text: str) -> Offsets:
    """Returns the offsets of the words, numbers and marks of a text."""
    return [x.span() for x in _TOKEN.finditer(text)]


def has_words(text: str) -> bool:
    """Returns whether a text has a letter or a digit."""
    return any(map(str.isalnum, text))


def memberships(pieces: Sequence[tuple[int, int]], of_words: Offsets) -> np.ndarray:
    """Returns which words each piece has characters of, float 0 or 1, `(pieces, words)`.

    A piece of white space belongs to the word that follows.
    """
    starts, ends = [start for start, _ in of_words], [end for _, end in of_words]
    found = np.zeros((len(pieces), len(of_words)))
    for row, (start, end) in zip(found, pieces, strict=True):
        first = bisect_right(ends, start)
        row[first : max(bisect_left(starts, end), first + 1)] = 1
    return found


def word_shares(attention: np.ndarray, of_source: np.ndarray, of_target: np.ndarray) -> np.ndarray:
    """Returns the attention `(T, S)` of target words to source words.

    For `attention`, see `word_alignment`. It is averaged over the pieces of a target word and
    summed over those of a source word. Then each column is divided by the root of its sum, because
    some words, such as the first one, get attention from all.
    """
    between = np.asarray(attention, float)[: len(of_target), : len(of_source)]
    means = of_target / np.maximum(of_target.sum(axis=0), 1)
    shares = means.T @ between @ of_source
    return shares / np.sqrt(shares.sum(axis=0) + _SMOOTHING)


def align_words(
    attention: np.ndarray, of_source: np.ndarray, of_target: np.ndarray
) -> tuple[tuple[int, int], ...]:
    """Aligns each target word with the source word that has the largest of `word_shares`.

    Returns sorted pairs of word indices (source, target), counted from 0.
    """
    if not of_source.shape[1] or not of_target.any():
        return ()
    best = word_shares(attention, of_source, of_target).argmax(axis=1)
    return tuple(sorted((int(source), target) for target, source in enumerate(best)))


def word_alignment(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    """Aligns each target word with the source word that its pieces attend to most.

    A word begins at a piece that starts with "▁". Row t, column s of the float array `attention` is
    the attention of target piece t to source piece s. Further rows and columns, such as those of
    eos, are ignored. For the normalization, see `word_shares`. Returns sorted pairs of word indices
    (source, target), counted from 0.

    Example:

    >>> word_alignment(np.array([[0.1, 0.9], [0.6, 0.4]]), ["▁black", "▁cat"], ["▁chat", "▁noir"])
    ((0, 1), (1, 0))
    """
    sides = []
    for pieces in (source_pieces, target_pieces):
        ends = [*itertools.accumulate(map(len, pieces))]
        text = "".join(pieces).replace("▁", " ")
        sides.append(memberships([*zip([0, *ends], ends, strict=False)], words(text)))
    return align_words(attention, *sides)


def token_alignment(
    tokenizer: Any, source: str, target: str, ids: Sequence[int], attention: np.ndarray
) -> TokenAlignment:
    """Aligns the words of a source with those of `target`, the text of the pieces `ids`."""
    of_source, of_target = tokens(source), tokens(target)
    shares = word_shares(
        attention,
        memberships(tokenizer.source_offsets(source), of_source),
        memberships(tokenizer.target_offsets(ids), of_target),
    )
    columns = [n for n, (start, end) in enumerate(of_source) if has_words(source[start:end])]
    rows = [n for n, (start, end) in enumerate(of_target) if has_words(target[start:end])]
    shares = shares[np.ix_(rows, columns)]
    sums = np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
    return TokenAlignment(
        [of_source[n] for n in columns], [of_target[n] for n in rows], shares / sums
    )


def same_text(text: str) -> TokenAlignment:
    """Aligns each word of a text with itself."""
    found = [(start, end) for start, end in tokens(text) if has_words(text[start:end])]
    return TokenAlignment(found, found, np.eye(len(found)))


def joined(parts: Sequence[tuple[int, int, TokenAlignment]]) -> TokenAlignment:
    """Joins alignments of parts of a text: no word belongs to a word of another part.

    Each alignment follows the places in both texts where its part begins.
    """
    source = [(at + x, at + y) for at, _, alignment in parts for x, y in alignment.source]
    target = [(at + x, at + y) for _, at, alignment in parts for x, y in alignment.target]
    shares = np.zeros((len(target), len(source)))
    row = column = 0
    for _, _, (_, _, block) in parts:
        height, width = block.shape
        shares[row : row + height, column : column + width] = block
        row, column = row + height, column + width
    return TokenAlignment(source, target, shares)
