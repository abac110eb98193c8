"""Defines `BaseTranslator`, the base class of all translators, and splits long sentences."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.corpus import available_chunks
from keras_transformer.data.tokenizer import fits
from keras_transformer.decoding.options import DecodingOptions, SearchOptions
from keras_transformer.errors import check_is_list
from keras_transformer.translation.hypothesis import (
    NO_HYPOTHESIS,
    Hypothesis,
    SourcePart,
    join_hypotheses,
)
from keras_transformer.translation.target_constraints import TargetConstraints, Words

# A translation may be this many tokens longer than its source (§6.1).
EXTRA_LENGTH = 50
# Largest number of lines of a stream that are translated together.
STREAMED_LINES = 1024
# The end of a sentence: Western punctuation followed by a space, or East Asian punctuation.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*(?=\S)")

Overlong = Literal["split", "truncate"]
# Whether to show a progress bar, or a function to call with numbers of finished sentences.
Progress = bool | Callable[[int], Any]
# Is called after each batch with the indices of its sources.
Advance = Callable[[Iterable[int]], Any]


class BaseTranslator(ABC):
    """Base class of `Translator` and `CTranslate2Translator`.

    It splits long sentences and joins the translations of their parts. `max_length` is the largest
    number of tokens that the model accepts. For the other arguments, see `Translator`.

    Attributes:
        waiting: What delays the first translation, such as "compiling". Otherwise "".
    """

    waiting = ""

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.options = self._checked(options or SearchOptions())
        self.overlong = overlong

    def translate(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        progress: Progress = False,
    ) -> list[str]:
        """Returns the best translation of each sentence.

        Args:
            sentences: Any number of strings, of any lengths. Blank strings are translated to "".
            prefixes: The required beginning of each translation. The string "" allows any.
            required: A list of words for each sentence, which its translation must contain. For
                what matches a word, see `TargetConstraints`.
            forbidden: A list of words for each sentence, which its translation must not contain.
            progress: Whether to show a progress bar. If `progress` is a function, it is called
                after each batch, with the number of sentences in the batch.

        Returns:
            One string per sentence, in the same order.

        Raises:
            TypeError: If `sentences` is a single string.
            ConstraintError: If the search cannot meet the constraints of a sentence.
        """
        options = self.options.replace(n_best=1)
        found = self._translate(options, False, progress, sentences, prefixes, required, forbidden)
        return [hypotheses[0].text for hypotheses in found]

    def translate_nbest(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        alignments: bool = False,
        progress: Progress = False,
    ) -> list[list[Hypothesis]]:
        """Returns the `options.n_best` best translations of each sentence, with their scores.

        For the arguments and errors, see `translate`. If `alignments` is True, the words of each
        translation are aligned with the words of its source, see `word_alignment`.

        Returns:
            One list per sentence, in the same order. Each list is sorted, best first. No two
            hypotheses of a beam group have the same token ids. If the search finds fewer
            translations that meet the constraints, the others are empty and have the score -inf.
            The best hypothesis of a blank sentence is empty and has the score 0.
        """
        return self._translate(
            self.options, alignments, progress, sentences, prefixes, required, forbidden
        )

    def _translate(
        self,
        options: SearchOptions,
        alignments: bool,
        progress: Progress,
        sentences: Sequence[str],
        *given: Any,
    ) -> list[list[Hypothesis]]:
        parts, count = self._parts(sentences), len(sentences)
        constraints = TargetConstraints(self.tokenizer, parts, count, *given)
        with counted_progress(progress, parts, count, self.waiting) as advance:
            found = self._search_parts(parts, options, constraints, advance)
        found = constraints.met(parts, found)
        if alignments:
            found = self._align(parts, found)
        alignment = () if alignments else None
        best = Hypothesis("", (), 0.0, 0.0, 0, alignment)
        others = [replace(NO_HYPOTHESIS, alignment=alignment)] * (options.n_best - 1)
        return whole_sentences(parts, found, [best, *others], count)

    def stream(self, lines: Iterable[str]) -> Iterator[str]:
        """Translates lines as they arrive, in the same order.

        The lines that have already arrived are translated together, up to 1,024 at a time.

        Example:

        >>> for translation in translator.stream(sys.stdin):
        ...     print(translation, flush=True)

        Args:
            lines: Sentences. The iterator may block until the next line arrives.

        Yields:
            The best translation of each line.
        """
        for chunk in available_chunks(lines, STREAMED_LINES):
            yield from self.translate(chunk)

    def _parts(self, sentences: Sequence[str]) -> list[SourcePart]:
        check_is_list(sentences=sentences)
        return source_parts(sentences, self.tokenizer, self.max_length, self.overlong)

    def _checked(self, options: Any) -> Any:
        for name in ("max_length", "min_length"):
            if (length := getattr(options, name) or 0) > self.max_length:
                raise ValueError(
                    f"`options.{name}` must be at most the model's max_length, "
                    f"{self.max_length}. Received: {name}={length}"
                )
        return options

    def _limit(self, options: DecodingOptions) -> Callable[[int], int]:
        """Returns a function of a source's length that gives its translation's maximum length."""
        own, least, most = options.max_length, options.min_length, self.max_length
        return lambda length: own or max(min(length + EXTRA_LENGTH, most), least)

    def __reduce__(self) -> Any:
        raise TypeError("a translator cannot be pickled or copied: open it where it is used")

    @abstractmethod
    def _search_parts(
        self,
        parts: list[SourcePart],
        options: SearchOptions,
        constraints: TargetConstraints,
        advance: Advance,
    ) -> list[list[Hypothesis]]:
        """Returns `options.n_best` hypotheses for each of the `parts`."""

    @abstractmethod
    def _align(
        self, parts: list[SourcePart], found: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each part with their alignments."""


@contextmanager
def counted_progress(
    progress: Progress, parts: Sequence[SourcePart], count: int, waiting: str
) -> Iterator[Advance]:
    """Yields the function `advance`. A sentence counts when its first part is finished."""
    hidden = callable(progress) or not progress
    with Bar("translating", waiting, total=count, unit="sentence", disable=hidden) as bar:
        update = progress if callable(progress) else bar.update
        yield lambda indices: update(sum(parts[index].number == 0 for index in indices))
        update(count - sum(part.number == 0 for part in parts))  # Blank sentences have no parts.


def whole_sentences(
    parts: list[SourcePart], found: list[list[Hypothesis]], blank: list[Hypothesis], count: int
) -> list[list[Hypothesis]]:
    """Joins hypothesis k of all parts of each sentence. Sentences without parts get `blank`."""
    of_sentence: list[list[list[Hypothesis]]] = [[] for _ in range(count)]
    for part, hypotheses in zip(parts, found, strict=True):
        of_sentence[part.sentence].append(hypotheses)
    return [[*map(join_hypotheses, zip(*x, strict=True))] or blank for x in of_sentence]


def source_parts(
    sentences: Sequence[str], tokenizer: Any, max_length: int, overlong: Overlong
) -> list[SourcePart]:
    """Encodes sentences, and shortens those that are too long. Blank sentences have no parts."""
    texts, found = [sentence.strip() for sentence in sentences], []
    most = max_length - 1  # One position is for eos.
    for index, (text, pieces) in enumerate(zip(texts, tokenizer.encode_source(texts), strict=True)):
        sources = [(text, pieces[:most])]
        if not fits(pieces, max_length) and overlong == "split":
            split = split_overlong(
                text, lambda x: fits(tokenizer.encode_source([x])[0], max_length)
            )
            encoded = [ids[:most] for ids in tokenizer.encode_source(split)]
            sources = list(zip(split, encoded, strict=True))
        elif not fits(pieces, max_length):
            warnings.warn(
                f"Only the first {most:,} of {len(pieces):,} pieces of {text[:40]!r}... are "
                "translated.",
                stacklevel=5,
            )
        # The word in which each part begins: the parts have the characters of the text in order.
        words = [number for number, word in enumerate(text.split()) for _ in word]
        starts = np.cumsum([0, *(len("".join(part.split())) for part, _ in sources)])
        kept = [(*x, start) for x, start in zip(sources, starts, strict=False) if x[1]]
        for number, (part, ids, start) in enumerate(kept):
            found.append(SourcePart(index, number, tokenizer.frame_source(ids), part, words[start]))
    return found


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
