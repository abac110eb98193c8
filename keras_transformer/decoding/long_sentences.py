"""Sentences as sources of a model, split or truncated to the length that the model accepts."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from keras_transformer.data.tokenizer import fits

Overlong = Literal["split", "truncate"]
OVERLONG = ("split", "truncate")

# Where a sentence may end: after Western punctuation and a space, or after East Asian.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*(?=\S)")


class SourcePart(NamedTuple):
    """A sentence, or one part of an overlong sentence."""

    sentence: int  # index of the sentence
    number: int  # index of the part in its sentence
    ids: list[int]  # source pieces and eos
    words: int  # number of words


def source_parts(
    sentences: Sequence[str], tokenizer: Any, max_length: int, overlong: Overlong
) -> list[SourcePart]:
    """Encodes sentences; one with at least `max_length` pieces is split or truncated.

    Returns the parts in the order of the text; a blank sentence has none.
    """
    texts = [sentence.strip() for sentence in sentences]
    found = []
    for index, (text, pieces) in enumerate(zip(texts, tokenizer.encode_source(texts), strict=True)):
        sources = [(text, pieces)]
        if not fits(pieces, max_length):
            sources = _shortened(text, pieces, tokenizer, max_length, overlong)
        for number, (part, ids) in enumerate(sources):
            if ids:
                source = tokenizer.frame_source(ids)
                found.append(SourcePart(index, number, source, len(part.split())))
    return found


def _shortened(
    text: str, pieces: list[int], tokenizer: Any, max_length: int, overlong: Overlong
) -> list[tuple[str, list[int]]]:
    """Texts and pieces that fit the model."""
    most = max_length - 1  # Without eos.
    if overlong == "split":
        parts = split_overlong(
            text, lambda part: fits(tokenizer.encode_source([part])[0], max_length)
        )
        encoded = tokenizer.encode_source(parts)
        return [(part, ids[:most]) for part, ids in zip(parts, encoded, strict=True)]
    warnings.warn(
        f"Only the first {most:,} of {len(pieces):,} pieces are translated of {text[:40]!r}...",
        stacklevel=4,
    )
    return [(text, pieces[:most])]


def split_overlong(text: str, is_short: Callable[[str], bool]) -> list[str]:
    """Splits a text until `is_short` is True of each part; a single character is never split.

    A text is split at the ends of its sentences, one part per sentence. A sentence that is still
    too long is halved between two words, and a word that is too long between two characters.

    >>> split_overlong("One two. Three four five.", lambda part: len(part.split()) <= 2)
    ['One two.', 'Three', 'four five.']
    """
    if len(text) < 2 or is_short(text):
        return [text]
    parts = [part for part in _SENTENCE_END.split(text) if part]
    if len(parts) == 1:
        parts = _halves(text)
    return [piece for part in parts for piece in split_overlong(part, is_short)]


def _halves(text: str) -> list[str]:
    words = text.split()
    if len(words) == 1:
        return [text[: len(text) // 2], text[len(text) // 2 :]]
    return [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]
