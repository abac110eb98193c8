"""Defines `BaseTranslator`, the base class of all translators."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from keras_transformer._progress import Bar
from keras_transformer.data.text_files import available_chunks
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import IMPOSSIBLE, DecodingOptions, SearchOptions
from keras_transformer.errors import check_is_list
from keras_transformer.translation.alignment import (
    AlignedPart,
    align_words,
    memberships,
    same_text,
    token_alignment,
    words,
)
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.hypothesis import Hypothesis, NBest, SourcePart
from keras_transformer.translation.long_lines import (
    source_parts,
    warn_of_copies,
    whole_sentences,
    wordless_pieces,
)
from keras_transformer.translation.markup import Segment
from keras_transformer.translation.protected_text import numbers_differ, with_stand_ins
from keras_transformer.translation.segments import (
    TranslatedSegment,
    needs_segment,
    translate_segments,
)
from keras_transformer.translation.target_constraints import TargetConstraints, Words
from keras_transformer.translation.unread_marks import without_entities
from keras_transformer.translation.word_forms import Rewritten, WordForms

# A translation may be this many tokens longer than its source (§6.1).
EXTRA_LENGTH = 50
# Number of lines that are translated together, and the largest number of those of a stream.
STREAMED_LINES = 1024
Overlong = Literal["split", "truncate"]
CopyUnknown = Literal["never", "lines", "characters"]
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
        has_attention: Whether words can be aligned.
    """

    waiting = ""
    has_attention = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        options: SearchOptions | None = None,
        overlong: Overlong = "split",
        copy_unknown: CopyUnknown = "lines",
        word_forms: WordForms | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.word_forms = word_forms or WordForms()
        self.max_length = max_length
        self.options = self._checked(options or SearchOptions())
        self.overlong = overlong
        self.copy_unknown = copy_unknown

    def __repr__(self) -> str:
        changed = self.options.model_dump(exclude_defaults=True)
        return f"<{type(self).__name__} with {self.tokenizer!r} and the options {changed}>"

    def translate(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        progress: Progress = False,
    ) -> list[str]:
        """Returns the best translation of each sentence.

        If the run knows the forms of words, a line without constraints is translated as a segment
        (see `translate_segments`) if it has a name that must stay, such as `{name}` or a URL, if
        the training text lacks one of its marks or writes them in another way, or if its numbers
        would change. HTML entities are read as their characters.

        Args:
            sentences: Any number of strings, of any lengths. The translation of a string without
                visible characters is "".
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
        check_is_list(sentences=sentences)
        given = prefixes, required, forbidden
        can_keep = self.has_attention and self.word_forms.has_sentences
        free = [n for n in range(len(sentences)) if can_keep and not _of_line(n, given)]
        lines, entities = [*sentences], {}
        for n in free:
            lines[n], entities[n] = without_entities(sentences[n])
        named = {n for n in free if needs_segment(lines[n], self.word_forms)}
        others = ["" if n in named else x for n, x in enumerate(lines)]
        texts = self._best(others, *given, progress=progress)
        if again := [n for n in free if n in named or numbers_differ(lines[n], texts[n])]:
            segments = self.translate_segments([Segment(lines[n].strip()) for n in again])
            for n, segment in zip(again, segments, strict=True):
                indent = lines[n][: len(lines[n]) - len(lines[n].lstrip())]
                texts[n] = indent + segment.text
        for n in free:
            texts[n] = texts[n].translate(entities[n])
        return texts

    def _best(self, sentences: Sequence[str], *given: Any, progress: Progress = False) -> list[str]:
        """Returns the best translation of each sentence, none as a segment."""
        options = self.options.replace(n_best=1)
        found = self._translate(options, False, False, progress, sentences, *given)
        return [hypotheses[0].text for hypotheses in found]

    def translate_nbest(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        required: Words | None = None,
        forbidden: Words | None = None,
        alignments: bool = False,
        progress: Progress = False,
        word_scores: bool = False,
    ) -> list[list[Hypothesis]]:
        """Returns the `options.n_best` best translations of each sentence, with their scores.

        For the arguments and errors, see `translate`. If `alignments` is True, the words of each
        translation are aligned with the words of its source, see `word_alignment`. If `word_scores`
        is True, each hypothesis has the scores of its words.

        Returns:
            One list per sentence, in the same order. Each list is sorted, best first. No two
            hypotheses of a beam group have the same token ids. If the search finds fewer
            translations that meet the constraints, the others are empty and have the score -inf.
            The best hypothesis of a blank sentence is empty and has the score 0.
        """
        given = prefixes, required, forbidden
        return self._translate(self.options, alignments, word_scores, progress, sentences, *given)

    def translate_segments(
        self,
        segments: Sequence[Segment],
        *,
        glossary: Glossary | None = None,
        escape: Callable[[str], str] = str,
        word_scores: bool = False,
        progress: Progress = False,
    ) -> list[TranslatedSegment]:
        """Translates texts with markup, and keeps what is not language.

        A segment can have several sentences. Placeholders such as `{name}`, URLs, e-mail addresses,
        identifiers, numbers and emoji stay as they are: the model reads words that it copies in
        their place. The markup, and what must stay, is placed by the alignment of words.

        Example:

        >>> text = "The red car costs 1,299.50 dollars."
        >>> translator.translate_segments([Segment(text, (Span(4, 11, "<b>", "</b>"),))])[0].text

        Args:
            segments: Texts with spans.
            glossary: The translations of terms. Defaults to None.
            escape: What is done to the text, but not to markup, such as `html.escape`.
            word_scores: Whether to return the scores of words, too.
            progress: As in `translate`, with numbers of segments.

        Returns:
            One `TranslatedSegment` per segment, in the same order.

        Raises:
            UserError: If the model has no attention.
        """
        return translate_segments(self, segments, glossary, escape, word_scores, progress)

    def prepare(self, num_sentences: int, max_length: int = 128) -> None:
        """Does for a server what delays the first translations, and bounds the time of each.

        Args:
            num_sentences: How many sentences are translated at once, at most. What they need is
                compiled now, and nothing later.
            max_length: Sentences of more tokens are split.
        """
        self.max_length = min(self.max_length, max_length)
        self.translate(["One."])
        _ = self.copied_words

    def _translate(
        self,
        options: Any,
        alignments: bool,
        word_scores: bool,
        progress: Progress,
        sentences: Sequence[str],
        *given: Any,
        **sampling: Any,
    ) -> NBest:
        check_is_list(sentences=sentences)
        # With constraints, a line is read as it is written.
        lines = [
            Rewritten(line) if _of_line(index, given) else self.word_forms.of_line(line)
            for index, line in enumerate(sentences)
        ]
        texts, apart = [x.text for x in lines], [x.is_split for x in lines]
        parts, count = self._parts(texts, apart), len(lines)
        constraints = TargetConstraints(self.tokenizer, parts, count, *given)
        # The translation of a sentence with required words is no copy.
        parts = [x._replace(is_copied=x.is_copied and not constraints.requires(x)) for x in parts]
        searched = self._not_copied(parts, sentences)
        owners = [part.sentence for part in searched]
        with counted_progress(progress, owners, count, self.waiting) as advance:
            aligned = range(len(searched)) if alignments else ()
            found = self._search_parts(searched, options, constraints, advance, aligned, **sampling)
        found = constraints.met(searched, found)
        if alignments:
            found = self._align(searched, found)
        if word_scores:
            found = self._with_word_scores(searched, found)
        of_words = () if alignments else None, () if word_scores else None
        best, none = (Hypothesis("", (), x, x, 0, *of_words) for x in (0.0, IMPOSSIBLE))
        blank = [best] * options.num_samples if sampling else [best, *[none] * (options.n_best - 1)]
        pairs = zip(lines, whole_sentences(parts, found, blank, count), strict=True)
        return [[line.restored(x) for x in xs] for line, xs in pairs]

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

    def _parts(self, lines: Sequence[str], apart: Sequence[bool] = ()) -> list[SourcePart]:
        """Encodes lines. Splits those that are too long, and others if they are `apart`."""
        settings = self.max_length, self.overlong == "split", self._wordless
        return source_parts(self.tokenizer, lines, *settings, apart or [False] * len(lines))

    @functools.cached_property
    def _wordless(self) -> frozenset[int]:
        """The pieces of text that is copied if no other piece is known."""
        return frozenset() if self.copy_unknown == "never" else wordless_pieces(self.tokenizer)

    def _not_copied(self, parts: Sequence[SourcePart], lines: Sequence[str]) -> list[SourcePart]:
        """Returns the parts that are not copied, and warns of the others as they are written."""
        copied = ((part.text, lines[part.sentence]) for part in parts if part.is_copied)
        warn_of_copies([text if text in line else line for text, line in copied])
        return [part for part in parts if not part.is_copied]

    def _checked(self, options: DecodingOptions) -> Any:
        lengths = {"max_length": options.max_length or 0, "min_length": options.min_length}
        for name, length in lengths.items():
            if length > self.max_length:
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
        aligned: Collection[int],
    ) -> NBest:
        """Returns `options.n_best` hypotheses for each of the `parts`.

        `aligned` has the indices of the parts for which `_attention` will be called.
        """

    @abstractmethod
    def _attention(self, parts: list[SourcePart], found: NBest) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the index of each part, and the attention `(N, T, S)` of its hypotheses to it.

        The attention begins after the prefixes of the tokenizer.
        """

    @abstractmethod
    def _token_scores(self, pairs: list[tuple[SourcePart, Hypothesis]]) -> list[list[float]]:
        """Returns the log-probabilities (nats) of the tokens of each hypothesis of a part.

        They begin after the prefixes of the tokenizer.
        """

    def search_aligned(
        self,
        texts: Sequence[str],
        groups: Sequence[int],
        marked: Sequence[bool],
        word_scores: bool,
        progress: Progress,
    ) -> list[AlignedPart]:
        """Translates texts as they are written, and aligns the parts of marked groups.

        `groups` has the group of each text, such as its paragraph. Progress counts the groups. The
        alignments of groups that are not `marked` are empty.
        """
        parts = self._parts(texts)
        searched = self._not_copied(parts, texts)
        owners = [groups[part.sentence] for part in searched]
        needed = [n for n, group in enumerate(owners) if marked[group]]
        with counted_progress(progress, owners, len(marked), self.waiting) as advance:
            constraints = TargetConstraints(self.tokenizer, searched, len(texts))
            options = self.options.replace(n_best=1)
            found = self._search_parts(searched, options, constraints, advance, needed)
        if word_scores:
            found = self._with_word_scores(searched, found)
        best = [x for (x,) in found]
        ids = [self._own_ids(x) for x in best]
        translations = self.tokenizer.decode_target(ids)
        alignments = [same_text("")] * len(best)
        weights = self._attention([searched[n] for n in needed], [found[n] for n in needed])
        for index, (of_best,) in weights:
            n = needed[index]
            alignments[n] = token_alignment(
                self.tokenizer, searched[n].text, translations[n], ids[n], of_best
            )
        scores = (x.word_scores or () for x in best)
        results = zip(translations, alignments, scores, strict=True)
        return [
            AlignedPart(part, part.text, same_text(part.text), (0.0,) * len(part.text.split()))
            if part.is_copied
            else AlignedPart(part, *next(results))
            for part in parts
        ]

    @functools.cached_property
    def copied_words(self) -> WordForms:
        """The names and numbers that the model copies."""
        forms, pieces = self.word_forms, self.tokenizer.source_pieces
        return forms if forms.names else with_stand_ins(forms, pieces, self._best)

    def _own_ids(self, hypothesis: Hypothesis) -> tuple[int, ...]:
        """Returns the ids of a hypothesis without the prefixes of the tokenizer."""
        return hypothesis.ids[len(self.tokenizer.target_prefix_ids) :]

    def _align(self, parts: list[SourcePart], found: NBest) -> NBest:
        """Returns the hypotheses of each part with their alignments."""
        aligned: NBest = [[]] * len(parts)
        for index, attention in self._attention(parts, found):
            text, first = parts[index].text, parts[index].first_word
            of_source = memberships(self.tokenizer.source_offsets(text), words(text))
            for weights, x in zip(attention, found[index], strict=True):
                of_target = self._target_words(x)
                pairs = ((s + first, t) for s, t in align_words(weights, of_source, of_target))
                aligned[index] = [*aligned[index], replace(x, alignment=tuple(pairs))]
        return aligned

    def _with_word_scores(self, parts: list[SourcePart], found: NBest) -> NBest:
        """Returns the hypotheses of each part with the scores of their words."""
        pairs = [(part, x) for part, xs in zip(parts, found, strict=True) for x in xs]
        scored = []
        for (_, x), tokens in zip(pairs, self._token_scores(pairs), strict=True):
            of_words = self._target_words(x)[: len(tokens)]
            sums = np.asarray(tokens)[: len(of_words)] @ of_words
            means = (sums / np.maximum(of_words.sum(axis=0), 1)).tolist()
            scored.append(replace(x, word_scores=tuple(means)))
        of_all = iter(scored)
        return [[next(of_all) for _ in xs] for xs in found]

    def _target_words(self, hypothesis: Hypothesis) -> np.ndarray:
        """Returns the words of each piece of a hypothesis, see `memberships`."""
        ids = self._own_ids(hypothesis)
        (text,) = self.tokenizer.decode_target([ids])
        return memberships(self.tokenizer.target_offsets(ids), words(text))


def _of_line(index: int, given: Sequence[Any]) -> list[str]:
    """Returns the words and letters of a line's constraints, of all that are `given`."""
    constraints = (x for lists in given if lists for x in lists[index : index + 1])
    return [word for words in constraints for word in words if word]


@contextmanager
def counted_progress(
    progress: Progress, owners: Sequence[int], count: int, waiting: str
) -> Iterator[Advance]:
    """Yields the function `advance`. What owns parts, in order, counts with the first of them."""
    hidden = callable(progress) or not progress
    first = [x != before for x, before in zip(owners, [None, *owners], strict=False)]
    with Bar("translating", waiting, total=count, unit="sentence", disable=hidden) as bar:
        update = progress if callable(progress) else bar.update
        yield lambda indices: update(sum(first[index] for index in indices))
        update(count - sum(first))  # Blank sentences have no parts.
