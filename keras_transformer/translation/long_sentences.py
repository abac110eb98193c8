"""Encodes sentences for a model, and splits or truncates sentences that are too long."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from keras_transformer.data.tokenizer import fits

Overlong = Literal["split", "truncate"]

# The end of a sentence: Western punctuation followed by a space, or East Asian punctuation.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*(?=\S)")


class SourcePart(NamedTuple):
    """A sentence, or one part of an overlong sentence."""

    sentence: int  # index of the sentence
    number: int  # index of the part in its sentence
    ids: list[int]  # ids of the source pieces, then eos
    text: str
    first_word: int  # index of the word of the sentence in which the part begins


def source_parts(
    sentences: Sequence[str], tokenizer: Any, max_length: int, overlong: Overlong
) -> list[SourcePart]:
    """Encodes sentences, and splits or truncates each sentence of `max_length` pieces or more.

    Returns the parts in the order of the text. A blank sentence has no parts.
    """
    texts, found = [sentence.strip() for sentence in sentences], []
    for index, (text, pieces) in enumerate(zip(texts, tokenizer.encode_source(texts), strict=True)):
        sources = [(text, pieces)]
        if not fits(pieces, max_length):
            sources = _shortened(text, pieces, tokenizer, max_length, overlong)
        first_words = _first_words(text, [part for part, _ in sources])
        kept = [(*x, word) for x, word in zip(sources, first_words, strict=True) if x[1]]
        for number, (part, ids, word) in enumerate(kept):
            found.append(SourcePart(index, number, tokenizer.frame_source(ids), part, word))
    return found


def _shortened(
    text: str, pieces: list[int], tokenizer: Any, max_length: int, overlong: Overlong
) -> list[tuple[str, list[int]]]:
    """Splits or truncates `text` to fit into the model, and returns each part with its pieces."""
    most = max_length - 1  # One position is for eos.
    if overlong == "split":
        parts = split_overlong(
            text, lambda part: fits(tokenizer.encode_source([part])[0], max_length)
        )
        encoded = tokenizer.encode_source(parts)
        return [(part, ids[:most]) for part, ids in zip(parts, encoded, strict=True)]
    warnings.warn(
        f"Only the first {most:,} of {len(pieces):,} pieces of {text[:40]!r}... are translated.",
        stacklevel=4,
    )
    return [(text, pieces[:most])]


def _first_words(text: str, parts: Sequence[str]) -> list[int]:
    """Returns, for each part, the index of the word in `text` where the part begins."""
    words = [index for index, word in enumerate(text.split()) for _ in word]
    counts = [len("".join(part.split())) for part in parts]
    return [words[before] for before in np.cumsum([0, *counts[:-1]])] if words else [0]


def split_overlong(text: str, is_short: Callable[[str], bool]) -> list[str]:
    """Splits a text until each part satisfies `is_short` or is a single character.

    The text is first split at the ends of its sentences. A sentence that is still too long is
    halved between two words. A word that is still too long is halved between two characters.

    >>> split_overlong("One two. Three four five.", lambda part: len(part.split()) <= 2)
    ['One two.', 'Three', 'four five.']
    """
    if len(text) < 2 or is_short(text):
        return [text]
    parts, words = [part for part in _SENTENCE_END.split(text) if part], text.split()
    if len(parts) == 1 and len(words) == 1:
        parts = [text[: len(text) // 2], text[len(text) // 2 :]]
    elif len(parts) == 1:
        parts = [" ".join(x) for x in (words[: len(words) // 2], words[len(words) // 2 :])]
    return [piece for part in parts for piece in split_overlong(part, is_short)]
