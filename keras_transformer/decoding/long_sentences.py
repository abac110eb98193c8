"""Sentences as sources of a model, which takes only so many pieces at a time."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Overlong = Literal["split", "truncate"]
OVERLONG = ("split", "truncate")

# Where a sentence may end: after Western punctuation and a space, or after East Asian.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*(?=\S)")


class SourcePart(NamedTuple):
    """What the model translates at a time: a sentence, or one of the parts of an overlong one.

    Attributes:
        sentence: Index of the sentence.
        number: Index of the part in its sentence.
        ids: Source pieces and eos.
        words: Number of words.
    """

    sentence: int
    number: int
    ids: list[int]
    words: int


def source_parts(
    sentences: Sequence[str], tokenizer: Any, longest: int, overlong: Overlong
) -> list[SourcePart]:
    """Encodes sentences, each as one part unless it has more pieces than the model takes.

    Args:
        sentences: Any strings. A blank one has no part.
        tokenizer: Has `encode_source` and `eos_id`.
        longest: Tokens that the model takes, eos included.
        overlong: What becomes of a longer sentence. `"split"`: parts, see `split_overlong`;
            `"truncate"`: its beginning, with a warning.

    Returns:
        The parts in the order of the text.
    """
    texts = [sentence.strip() for sentence in sentences]
    found = []
    for index, (text, pieces) in enumerate(zip(texts, tokenizer.encode_source(texts), strict=True)):
        sources = [(text, pieces)]
        if len(pieces) >= longest:
            sources = _shortened(text, pieces, tokenizer, longest - 1, overlong)
        for number, (part, ids) in enumerate(sources):
            if ids:
                words = len(part.split())
                found.append(SourcePart(index, number, [*ids, tokenizer.eos_id], words))
    return found


def _shortened(
    text: str, pieces: list[int], tokenizer: Any, most: int, overlong: Overlong
) -> list[tuple[str, list[int]]]:
    """Texts and ids of at most `most` pieces each."""
    if overlong == "split":
        parts = split_overlong(text, lambda part: len(tokenizer.encode_source([part])[0]) <= most)
        encoded = tokenizer.encode_source(parts)
        return [(part, ids[:most]) for part, ids in zip(parts, encoded, strict=True)]
    warnings.warn(
        f"Only the first {most:,} of {len(pieces):,} pieces are translated of {text[:40]!r}...",
        stacklevel=4,
    )
    return [(text, pieces[:most])]


def split_overlong(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Splits a text into parts that the model can take.

    At the ends of its sentences, one part a sentence, as the model has learned them; a sentence
    that is still too long is halved between two words until its parts fit, and a single word that
    is too long, as of a language without spaces, between two characters.

    Example:

    >>> split_overlong("One two. Three four five.", lambda part: len(part.split()) <= 2)
    ['One two.', 'Three', 'four five.']

    Args:
        text: Without white space at its ends.
        fits: Whether a part is short enough. A single character always counts as such.

    Returns:
        The parts in their order, none of them blank; `[text]` if it fits as it is.
    """
    if len(text) < 2 or fits(text):
        return [text]
    parts = [part for part in _SENTENCE_END.split(text) if part]
    if len(parts) == 1:
        parts = _halves(text)
    return [piece for part in parts for piece in split_overlong(part, fits)]


def _halves(text: str) -> list[str]:
    words = text.split()
    if len(words) == 1:
        return [text[: len(text) // 2], text[len(text) // 2 :]]
    return [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]
