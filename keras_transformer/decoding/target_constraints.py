"""What translations must begin with, must contain and must not contain."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding.buckets import power_of_two
from keras_transformer.decoding.long_sentences import SourcePart

Words = Sequence[Sequence[str]]


class TargetConstraints:
    """Prefixes, forbidden and required words of each sentence, as arrays of few shapes.

    A word is the pieces that the tokenizer gives for it at the beginning of a word: "cat" is also
    found in "cats" where that is the pieces "▁cat" and "s", but not in "Cat" or in other pieces
    that give the same letters. Of a sentence in parts, its first part gets the prefix.

    Args:
        tokenizer: Has `encode_target` and `pad_id`.
        parts: All that is to be translated.
        count: Number of sentences.
        prefixes: A string for each sentence; "" for none. None for no prefixes at all.
        forbidden: A list of words for each sentence, or None.
        required: A list of words for each sentence, or None.

    Raises:
        TypeError: If words are a string instead of a list of them.
        ValueError: If these are not as many as there are sentences, or words are required of a
            sentence that must be split: nobody knows in which of its parts.
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
        for name, given in (
            ("prefixes", prefixes),
            ("forbidden", forbidden),
            ("required", required),
        ):
            _check(name, given, count)
        self._prefixes = tokenizer.encode_target(prefixes) if prefixes else []
        self._forbidden = _encode_words(tokenizer, forbidden)
        self._required = _encode_words(tokenizer, required)
        for part in parts:
            if required and part.number and self._required[part.sentence]:
                raise ValueError(
                    "No words can be required of a sentence that is longer than the model takes. "
                    f"Received: required={list(required[part.sentence])}"
                )

    def arrays(self, parts: Sequence[SourcePart], rows: int) -> dict[str, np.ndarray | None]:
        """Returns the constraints of a batch as the fields of a `Request`.

        Sizes are powers of two and the same for all batches, so that few shapes are compiled.

        Args:
            parts: Those of the batch.
            rows: Rows B, at least as many as parts.

        Returns:
            `prefix_ids`, `forbidden_ids` and `required_ids`; None if no sentence has such.
        """
        return {
            "prefix_ids": self._prefix_ids(parts, rows),
            "forbidden_ids": self._sequences(self._forbidden, parts, rows),
            "required_ids": self._sequences(self._required, parts, rows),
        }

    def _prefix_ids(self, parts: Sequence[SourcePart], rows: int) -> np.ndarray | None:
        if not any(self._prefixes):
            return None
        shape = (rows, power_of_two(max(map(len, self._prefixes))))
        prefix_ids = np.full(shape, self._pad_id, "int32")
        for row, part in enumerate(parts):
            if part.number == 0:
                ids = self._prefixes[part.sentence]
                prefix_ids[row, : len(ids)] = ids
        return prefix_ids

    def _sequences(
        self, words: list[list[list[int]]], parts: Sequence[SourcePart], rows: int
    ) -> np.ndarray | None:
        if not any(words):
            return None
        count = power_of_two(max(map(len, words)))
        width = power_of_two(max(len(ids) for sequences in words for ids in sequences))
        array = np.full((rows, count, width), self._pad_id, "int32")
        for row, part in enumerate(parts):
            for column, ids in enumerate(words[part.sentence]):
                array[row, column, : len(ids)] = ids
        return array


def _check(name: str, given: Sequence[Any] | None, count: int) -> None:
    if given is None:
        return
    if len(given) != count:
        raise ValueError(
            f"`{name}` must be as many as the sentences, {count}. Received: {len(given)}"
        )
    if name != "prefixes" and any(isinstance(words, str) for words in given):
        raise TypeError(f"`{name}` must be a list of words for each sentence. Received: {given}")


def _encode_words(tokenizer: Any, words: Words | None) -> list[list[list[int]]]:
    """Ids of every word of every sentence; those of no ids are left out."""
    encoded = [tokenizer.encode_target(list(of_sentence)) for of_sentence in words or []]
    return [[ids for ids in sequences if ids] for sequences in encoded]
