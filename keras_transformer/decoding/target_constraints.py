"""Encodes prefixes, required words and forbidden words of translations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding.buckets import padded, power_of_two
from keras_transformer.decoding.long_sentences import SourcePart

Words = Sequence[Sequence[str]]


class TargetConstraints:
    """Encodes prefixes, forbidden words and required words as arrays with few different shapes.

    A word matches only the pieces that the tokenizer returns for the word alone. So "cat" matches
    "cats" if the pieces of "cats" are "▁cat" and "s". "Cat" does not match, and neither
    do other pieces with the same letters. If a sentence is split, the prefix applies only to the
    first part. A forbidden word with a character that the tokenizer does not know has no effect.

    `prefixes`, `forbidden` and `required` are the arguments of `Translator.translate` for `count`
    sentences, which were split into `parts`.

    Raises:
        TypeError: If the words of a sentence are a string instead of a list.
        ValueError: If the number of entries is not `count`, if a prefix or required word has a
            character that the tokenizer does not know, if a required word has `max_length` tokens
            or more, or if a sentence with required words is split (because it is not known
            which part must contain the words).
    """

    def __init__(
        self,
        tokenizer: Any,
        parts: Sequence[SourcePart],
        count: int,
        prefixes: Sequence[str] | None = None,
        forbidden: Words | None = None,
        required: Words | None = None,
        max_length: int | None = None,
    ) -> None:
        self._pad_id = tokenizer.pad_id
        _check("prefixes", prefixes, count)
        _check("forbidden", forbidden, count)
        _check("required", required, count)
        _check_characters(tokenizer, "prefix", [[prefix] for prefix in prefixes or []])
        _check_characters(tokenizer, "required word", required or [])
        self._prefixes = tokenizer.encode_target(prefixes) if prefixes else []
        self._forbidden = _encode_words(tokenizer, forbidden)
        self._required = _encode_words(tokenizer, required)
        for sequences in self._required:
            if max_length is not None and max(map(len, sequences), default=0) >= max_length:
                raise ValueError(
                    "A required word must have fewer tokens than the longest translation, "
                    f"{max_length}. Received: a word of {max(map(len, sequences))} tokens"
                )
        for part in parts:
            if required and part.number and self._required[part.sentence]:
                raise ValueError(
                    "A sentence with required words must not be longer than the model accepts. "
                    f"Received: required={list(required[part.sentence])}"
                )

    def arrays(self, parts: Sequence[SourcePart], rows: int) -> dict[str, np.ndarray | None]:
        """Returns the constraints of a batch of `rows` rows as fields of a `Request`.

        A field is None if no sentence has constraints of this kind. All sizes except `rows` are
        powers of two and the same in all batches, so that few shapes are compiled.
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
            f"`{name}` must have one entry for each of {count} sentences. Received: {len(given)}"
        )
    if name != "prefixes" and any(isinstance(words, str) for words in given):
        raise TypeError(f"`{name}` must have a list of words for each sentence. Received: {given}")


def _check_characters(tokenizer: Any, kind: str, words: Words) -> None:
    """Raises a ValueError if a prefix or word has a character that the tokenizer does not know."""
    for word in (word for of_sentence in words for word in of_sentence):
        if tokenizer.unk_id in tokenizer.encode_target([word])[0]:
            raise ValueError(
                f"A {kind} must have only characters that the tokenizer knows. Received: {word!r}"
            )


def _encode_words(tokenizer: Any, words: Words | None) -> list[list[list[int]]]:
    """Returns the ids of each sentence's words, without repeated words.

    Words without ids or with unknown characters are omitted too.
    """
    encoded = [tokenizer.encode_target([*dict.fromkeys(given)]) for given in words or []]
    return [
        [ids for ids in sequences if ids and tokenizer.unk_id not in ids] for sequences in encoded
    ]
