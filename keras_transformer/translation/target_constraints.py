"""Encodes prefixes, required words and forbidden words of translations."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.batches import padded, smallest_power
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.errors import check_is_list
from keras_transformer.translation.hypothesis import NO_HYPOTHESIS, Hypothesis, NBest, SourcePart

Words = Sequence[Sequence[str]]


class ConstraintError(ValueError):
    """Raised if the constraints on the translation of a sentence cannot be met.

    `sentence` is the index of the sentence, and `reason` the message without it.
    """

    def __init__(self, sentence: int, reason: str) -> None:
        super().__init__(f"sentences[{sentence}]: {reason}")
        self.sentence, self.reason = sentence, reason


class TargetConstraints:
    """Encodes prefixes, required words and forbidden words as arrays with few different shapes.

    A word matches only the pieces that the tokenizer returns for the word alone. So "cat" matches
    "cats" if the pieces of "cats" are "▁cat" and "s". The word "cat" matches neither "Cat" nor
    other pieces with the same letters. If a sentence is split, the prefix applies only to the first
    part. The target prefix of the tokenizer comes before it, in all parts. If the tokenizer does
    not know a character of a forbidden word, the word has no effect. A sentence with required words
    must not be split, because it is unknown which part must contain them.

    `prefixes`, `required` and `forbidden` are the arguments of `Translator.translate` for `count`
    sentences, which were split into `parts`. They raise `ConstraintError` if they cannot be met.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        parts: Sequence[SourcePart],
        count: int,
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
    ) -> None:
        prefixes = [""] * count if prefixes is None else prefixes
        required = [[]] * count if required is None else required
        forbidden = [[]] * count if forbidden is None else forbidden
        self._given = {"prefixes": prefixes, "required": required, "forbidden": forbidden}
        for name, given in self._given.items():
            lists = {f"{name}[{i}]": x for i, x in enumerate(given) if name != "prefixes"}
            check_is_list(**{name: given}, **lists)
            if len(given) != count:
                raise ValueError(
                    f"`{name}` must have one entry for each of {count} sentences. "
                    f"Received: {len(given)}"
                )
        self._pad_id, unk_id = tokenizer.pad_id, tokenizer.unk_id
        self._prefix_of_all = [*tokenizer.target_prefix_ids]
        self._prefixes = tokenizer.encode_target(prefixes)
        self._required = _encode_words(tokenizer, required)
        encoded = _encode_words(tokenizer, forbidden)
        self._forbidden = [[ids for ids in words if unk_id not in ids] for words in encoded]
        num_parts = Counter(part.sentence for part in parts)
        for sentence, words in enumerate(self._required):
            prefix, num = self._prefixes[sentence], num_parts[sentence]
            if any(unk_id in ids for ids in (prefix, *words)):
                rule = "Prefix and required words must have characters that the tokenizer knows."
            elif (prefix or words) and not num:
                rule = "A blank sentence must have no prefix and no required words."
            elif words and num > 1:
                rule = "A sentence with required words must not be longer than the model accepts."
            else:
                continue
            raise self._error(sentence, rule)

    def __bool__(self) -> bool:
        return any(any(x) for x in (self._prefixes, self._required, self._forbidden))

    def requires(self, part: SourcePart) -> bool:
        """Returns whether a part's sentence has a prefix or required words."""
        return bool(self._prefixes[part.sentence] or self._required[part.sentence])

    def met(self, parts: Sequence[SourcePart], found: Sequence[Sequence[Hypothesis]]) -> NBest:
        """Returns the hypotheses `found` for each part, best first.

        Those that do not meet the constraints become `NO_HYPOTHESIS`. If the best of a part does
        not, raises `ConstraintError`.
        """
        rule = (
            "The search found no translation that meets the constraints. Change the constraints, "
            "or raise the maximum length or the beam size."
        )
        pairs = [*zip(parts, found, strict=True)]
        if unmet := [part for part, of_part in pairs if not self._is_met(part, of_part[0])]:
            raise self._error(unmet[0].sentence, rule)
        return [[x if self._is_met(part, x) else NO_HYPOTHESIS for x in xs] for part, xs in pairs]

    def _is_met(self, part: SourcePart, hypothesis: Hypothesis) -> bool:
        prefix, ids = self.prefix(part), list(hypothesis.ids)
        # If the forbidden words leave no token to choose, the score is `IMPOSSIBLE`.
        if self._forbidden[part.sentence] and hypothesis.score == IMPOSSIBLE:
            return False
        required = self._required[part.sentence]
        return ids[: len(prefix)] == prefix and all(_contains(ids, x) for x in required)

    def _error(self, sentence: int, rule: str) -> ConstraintError:
        given = {name: values[sentence] for name, values in self._given.items()}
        shown = (f"{name.removesuffix('es')}={x!r}" for name, x in given.items() if any(x))
        return ConstraintError(sentence, f"{rule} Received: {', '.join(shown)}")

    def prefix(self, part: SourcePart) -> list[int]:
        """Returns the ids of a part's prefix, or an empty list if the part has no prefix."""
        return self._prefix_of_all + ([] if part.number else self._prefixes[part.sentence])

    def arrays(self, parts: Sequence[SourcePart], rows: int) -> dict[str, np.ndarray | None]:
        """Returns the constraints of a batch of `rows` rows as fields of a `Request`.

        A field is None if no sentence has constraints of this kind. The other sizes of the arrays
        are the same powers of two in all batches, so that the search is compiled for few shapes.
        """
        prefix_ids = None
        if longest := len(self._prefix_of_all) + max(map(len, self._prefixes)):
            width = smallest_power(2, longest)
            prefix_ids = padded([*map(self.prefix, parts)], rows, width, self._pad_id)
        return {
            "prefix_ids": prefix_ids,
            "forbidden_ids": self._sequences(self._forbidden, parts, rows),
            "required_ids": self._sequences(self._required, parts, rows),
        }

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


def _contains(ids: list[int], sequence: list[int]) -> bool:
    size = len(sequence)
    return any(ids[start : start + size] == sequence for start in range(len(ids) - size + 1))


def _encode_words(tokenizer: Tokenizer, words: Words) -> list[list[list[int]]]:
    """Returns the ids of each sentence's words, without repeated words and words without ids."""
    encoded = [tokenizer.encode_target([*dict.fromkeys(given)]) for given in words]
    return [[ids for ids in sequences if ids] for sequences in encoded]
