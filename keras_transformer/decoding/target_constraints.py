"""Prefixes, required words and forbidden words of translations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding.buckets import padded, power_of_two
from keras_transformer.decoding.long_sentences import SourcePart

Words = Sequence[Sequence[str]]


class TargetConstraints:
    """Prefixes, forbidden words and required words of each sentence, as arrays of few shapes.

    A word is found as the pieces that the tokenizer gives for it at the beginning of a word. So
    "cat" is found in "cats" if that is "▁cat" and "s"; it is not found in "Cat", nor as other
    pieces of the same letters. If a sentence is split, its first part gets the prefix.

    `prefixes`, `forbidden` and `required` are those of `Translator.translate`, for `count`
    sentences that were split into `parts`.

    Raises:
        TypeError: If the words of a sentence are a string instead of a list.
        ValueError: If there is not one entry per sentence, or a sentence with required words is
            split: the part that must contain them is unknown.
    """

    def __init__(
        self,
        tokenizer: Any,
        parts: Sequence[SourcePart],
        count: int,
        prefixes: Sequence[str] | None = None,
        forbidden: Words | None = None,
        required: Words | None = None,
    ) -> None:
        self._pad_id = tokenizer.pad_id
        _check("prefixes", prefixes, count)
        _check("forbidden", forbidden, count)
        _check("required", required, count)
        self._prefixes = tokenizer.encode_target(prefixes) if prefixes else []
        self._forbidden = _encode_words(tokenizer, forbidden)
        self._required = _encode_words(tokenizer, required)
        for part in parts:
            if required and part.number and self._required[part.sentence]:
                raise ValueError(
                    "No words can be required of a sentence that is longer than the model accepts. "
                    f"Received: required={list(required[part.sentence])}"
                )

    def arrays(self, parts: Sequence[SourcePart], rows: int) -> dict[str, np.ndarray | None]:
        """Returns the constraints of a batch of B = `rows` rows as fields of a `Request`.

        A field is None if no sentence has such constraints. Sizes are powers of two and the same
        for all batches, so that few shapes are compiled.
        """
        return {
            "prefix_ids": self._prefix_ids(parts, rows),
            "forbidden_ids": self._sequences(self._forbidden, parts, rows),
            "required_ids": self._sequences(self._required, parts, rows),
        }

    def _prefix_ids(self, parts: Sequence[SourcePart], rows: int) -> np.ndarray | None:
        if not any(self._prefixes):
            return None
        width = power_of_two(max(map(len, self._prefixes)))
        ids = [[] if part.number else self._prefixes[part.sentence] for part in parts]
        return padded(ids, rows, width, self._pad_id)

    def _sequences(
        self, words: list[list[list[int]]], parts: Sequence[SourcePart], rows: int
    ) -> np.ndarray | None:
        if not any(words):
            return None
        count = power_of_two(max(map(len, words)))
        width = power_of_two(max(len(ids) for sequences in words for ids in sequences))
        array = np.full((rows, count, width), self._pad_id, "int32")
        for row, part in enumerate(parts):
            array[row] = padded(words[part.sentence], count, width, self._pad_id)
        return array


def _check(name: str, given: Sequence[Any] | None, count: int) -> None:
    if given is None:
        return
    if len(given) != count:
        raise ValueError(
            f"`{name}` must have one entry per sentence, {count}. Received: {len(given)}"
        )
    if name != "prefixes" and any(isinstance(words, str) for words in given):
        raise TypeError(f"`{name}` must be a list of words for each sentence. Received: {given}")


def _encode_words(tokenizer: Any, words: Words | None) -> list[list[list[int]]]:
    """The ids of the words of each sentence, without words that have no ids."""
    encoded = [tokenizer.encode_target(list(of_sentence)) for of_sentence in words or []]
    return [[ids for ids in sequences if ids] for sequences in encoded]
