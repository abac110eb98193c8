"""Encodes prefixes, required words and forbidden words of translations."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.translation.buckets import padded, smallest_power
from keras_transformer.translation.hypothesis import NO_HYPOTHESIS, Hypothesis
from keras_transformer.translation.long_sentences import SourcePart

Words = Sequence[Sequence[str]]


class ConstraintError(ValueError):
    """Raised if the constraints on the translation of a sentence cannot be met.

    Attributes:
        sentence: Index of the sentence.
        reason: The message without the index.
    """

    def __init__(self, sentence: int, reason: str) -> None:
        super().__init__(f"sentences[{sentence}]: {reason}")
        self.sentence, self.reason = sentence, reason


class TargetConstraints:
    """Encodes prefixes, forbidden words and required words as arrays with few different shapes.

    A word matches only the pieces that the tokenizer returns for the word alone. So "cat" matches
    "cats" if the pieces of "cats" are "▁cat" and "s". The word "cat" matches neither "Cat" nor
    other pieces with the same letters. If a sentence is split, the prefix applies only to the first
    part. If the tokenizer does not know a character of a forbidden word, the word has no effect.

    `prefixes`, `forbidden` and `required` are the arguments of `Translator.translate` for `count`
    sentences, which were split into `parts`.

    Raises:
        TypeError: If a prefix is no string, or the words of a sentence are no list of strings.
        ValueError: If `prefixes`, `forbidden` or `required` does not have `count` entries.
        ConstraintError: If a prefix or required word has a character that the tokenizer does not
            know, contains a forbidden word, belongs to a blank sentence, or is too long for a
            translation of `max_length` tokens. Also if a sentence with required words is so long
            that it is split, because it is unknown which part must contain the words.
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
        self._given = {
            "prefix": [""] * count if prefixes is None else prefixes,
            "required": [[]] * count if required is None else required,
            "forbidden": [[]] * count if forbidden is None else forbidden,
        }
        for sentence in range(count):
            self._check_characters(tokenizer, sentence)
        self._prefixes = tokenizer.encode_target(self._given["prefix"])
        self._forbidden = _encode_words(tokenizer, self._given["forbidden"])
        self._required = _encode_words(tokenizer, self._given["required"])
        num_parts = Counter(part.sentence for part in parts)
        for sentence in range(count):
            self._check_sentence(sentence, num_parts[sentence], max_length)

    def _check_characters(self, tokenizer: Any, sentence: int) -> None:
        prefix, required = self._given["prefix"][sentence], self._given["required"][sentence]
        for kind, words in (("prefix", [prefix]), ("required word", required)):
            for word in words:
                if word and tokenizer.unk_id in tokenizer.encode_target([word])[0]:
                    raise ConstraintError(
                        sentence,
                        f"A {kind} must have only characters that the tokenizer knows. "
                        f"Received: {word!r}",
                    )

    def _check_sentence(self, sentence: int, num_parts: int, max_length: int | None) -> None:
        prefix, required = self._prefixes[sentence], self._required[sentence]
        longest = max(map(len, required), default=0)
        if (prefix or required) and not num_parts:
            rule = "A blank sentence must have no prefix and no required words."
        elif required and num_parts > 1:
            rule = "A sentence with required words must not be longer than the model accepts."
        elif max_length is not None and longest >= max_length:
            rule = (
                "A required word must have fewer tokens than the maximum length of a translation, "
                f"{max_length}."
            )
        elif max_length is not None and len(prefix) > max_length:
            rule = (
                f"A prefix must have at most {max_length} tokens, the maximum length of a "
                "translation."
            )
        elif any(_contains(x, y) for x in (prefix, *required) for y in self._forbidden[sentence]):
            rule = "A prefix or required word must not contain a forbidden word."
        else:
            return
        raise self._error(sentence, rule)

    def met(
        self, parts: Sequence[SourcePart], found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses `found` for each part, best first.

        Hypotheses after the best that lack a required word become `NO_HYPOTHESIS`.

        Raises:
            ConstraintError: If the best hypothesis of a part does not meet the constraints.
        """
        for part, (best, *_) in zip(parts, found, strict=True):
            if not self._is_met(part, best):
                raise self._error(
                    part.sentence,
                    "The search found no translation that meets the constraints. Change the "
                    "constraints, or raise the maximum length or the beam size.",
                )
        return [
            [x if self._is_met(part, x) else NO_HYPOTHESIS for x in of_part]
            for part, of_part in zip(parts, found, strict=True)
        ]

    def _is_met(self, part: SourcePart, hypothesis: Hypothesis) -> bool:
        prefix, ids = self.prefix(part), list(hypothesis.ids)
        required, forbidden = self._required[part.sentence], self._forbidden[part.sentence]
        # If the forbidden words leave no token to choose, the score is `IMPOSSIBLE`.
        has_tokens = not forbidden or hypothesis.score != IMPOSSIBLE
        is_complete = ids[: len(prefix)] == prefix and all(_contains(ids, x) for x in required)
        return has_tokens and is_complete

    def _error(self, sentence: int, rule: str) -> ConstraintError:
        given = {name: values[sentence] for name, values in self._given.items()}
        shown = (f"{name}={value!r}" for name, value in given.items() if any(value))
        return ConstraintError(sentence, f"{rule} Received: {', '.join(shown)}")

    @property
    def has_words(self) -> bool:
        """Whether a sentence has required or forbidden words."""
        return any(self._required) or any(self._forbidden)

    def prefix(self, part: SourcePart) -> list[int]:
        """Returns the ids of a part's prefix, or an empty list if the part has no prefix."""
        return [] if part.number else self._prefixes[part.sentence]

    def arrays(self, parts: Sequence[SourcePart], rows: int) -> dict[str, np.ndarray | None]:
        """Returns the constraints of a batch of `rows` rows as fields of a `Request`.

        A field is None if no sentence has constraints of this kind. All sizes of the arrays except
        `rows` are powers of two. These sizes are the same in all batches, so that the search is
        compiled for few shapes.
        """
        return {
            "prefix_ids": self._prefix_ids(parts, rows),
            "forbidden_ids": self._sequences(self._forbidden, parts, rows),
            "required_ids": self._sequences(self._required, parts, rows),
        }

    def _prefix_ids(self, parts: Sequence[SourcePart], rows: int) -> np.ndarray | None:
        if not any(self._prefixes):
            return None
        width = smallest_power(2, max(map(len, self._prefixes)))
        return padded(list(map(self.prefix, parts)), rows, width, self._pad_id)

    def _sequences(
        self, words: list[list[list[int]]], parts: Sequence[SourcePart], rows: int
    ) -> np.ndarray | None:
        if not any(words):
            return None
        count = smallest_power(2, max(map(len, words)))
        width = smallest_power(2, max(len(ids) for sequences in words for ids in sequences))
        array = np.full((rows, count, width), self._pad_id, "int32")
        for row, part in enumerate(parts):
            array[row] = padded(words[part.sentence], count, width, self._pad_id)
        return array


def _check(name: str, given: Sequence[Any] | None, count: int) -> None:
    if given is None:
        return
    if isinstance(given, str):
        raise TypeError(f"`{name}` must be a list. Received: {given!r:.200}")
    if len(given) != count:
        raise ValueError(
            f"`{name}` must have one entry for each of {count} sentences. Received: {len(given)}"
        )
    if name == "prefixes":
        if not all(isinstance(prefix, str) for prefix in given):
            raise TypeError(f"`prefixes` must have a string for each sentence. Received: {given}")
    elif not all(map(_is_list_of_words, given)):
        raise TypeError(f"`{name}` must have a list of words for each sentence. Received: {given}")


def _is_list_of_words(words: Any) -> bool:
    return isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)


def _contains(ids: list[int], sequence: list[int]) -> bool:
    size = len(sequence)
    return any(ids[start : start + size] == sequence for start in range(len(ids) - size + 1))


def _encode_words(tokenizer: Any, words: Words) -> list[list[list[int]]]:
    """Returns the ids of each sentence's words, without repeated words.

    Words without ids and words with unknown characters are also omitted.
    """
    encoded = [tokenizer.encode_target([*dict.fromkeys(given)]) for given in words]
    return [
        [ids for ids in sequences if ids and tokenizer.unk_id not in ids] for sequences in encoded
    ]
