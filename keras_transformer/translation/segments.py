"""Translates texts with markup: splits sentences, protects what must stay, and projects markup."""

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.translation.alignment import (
    AlignedPart,
    TokenAlignment,
    joined,
    same_text,
)
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.hypothesis import SourcePart
from keras_transformer.translation.long_lines import sentence_ends, separator
from keras_transformer.translation.markup import Segment, Span, project
from keras_transformer.translation.protected_text import Item, protected
from keras_transformer.translation.word_forms import Rewritten, WordForms


class TranslatedSegment(NamedTuple):
    """The translation of a segment.

    Attributes:
        text: The translation with its markup.
        terms: The terms of the glossary that were applied, each with its translation.
        word_scores: Each word of the translation without markup, and the mean log-probability
            (nats) of its pieces. Stand-ins are in place of what stays.
    """

    text: str
    terms: tuple[tuple[str, str], ...] = ()
    word_scores: tuple[tuple[str, float], ...] = ()


class _Sentence(NamedTuple):
    """A sentence of a segment, in which words that the model copies stand for what stays."""

    segment: int  # index of the segment
    start: int  # its place in the text of the segment
    text: str
    kept: frozenset[str]  # the words that the model copies
    is_copied: bool = False  # instead of translated


class _Block(NamedTuple):
    """A part of a segment and its translation."""

    start: int  # its place in the text of the segment
    source: str
    target: str
    alignment: TokenAlignment
    is_upper: bool = False
    is_copied: bool = False
    word_scores: tuple[tuple[str, float], ...] = ()


def translate_segments(
    translator: Any,
    segments: Sequence[Segment],
    glossary: Glossary | None,
    escape: Callable[[str], str],
    word_scores: bool,
    progress: bool | Callable[[int], Any],
) -> list[TranslatedSegment]:
    """Does the work of `BaseTranslator.translate_segments`."""
    ready, sentences = [], []
    for index, segment in enumerate(segments):
        protected_segment, found = _protect(index, segment, translator.copied_words, escape)
        ready.append(protected_segment)
        sentences += found
    blocks: list[list[_Block]] = [[] for _ in segments]
    terms = glossary or Glossary({})
    marked = [bool(x.spans or [*terms.find(x.text)]) for x in ready]
    settings = {"word_scores": word_scores, "progress": progress}
    for index, block in _translated(translator, sentences, marked, **settings):
        blocks[index].append(block)
    return [
        _rendered(changed, of_segment, terms, escape)
        if any(not x.is_copied for x in of_segment)
        else TranslatedSegment(_verbatim(segment, escape))
        for segment, changed, of_segment in zip(segments, ready, blocks, strict=True)
    ]


def _protect(
    index: int, segment: Segment, forms: WordForms, escape: Callable[[str], str]
) -> tuple[Segment, list[_Sentence]]:
    """Returns a segment with words that the model copies for all that stays, and its sentences."""
    text = segment.text
    owners = [(Item(x.start, x.end, "name"), x) for x in segment.spans if x.replacement is not None]
    given = [item for item, _ in owners]
    for item in protected(text):
        if not any(x.start < item.end and item.start < x.end for x in given):
            found = escape(text[item.start : item.end])
            is_mark = item.kind == "mark"
            owners.append((item, Span(0, 0, found) if is_mark else Span(0, 0, replacement=found)))
    owners.sort(key=lambda x: x[0][:2])
    items = [item for item, _ in owners]
    words_of, cuts, copied = _stand_ins(text, items, forms)
    moved, places = "", list[tuple[int, int]]()
    for item, before in zip(items, [0, *(x.end for x in items)], strict=False):
        moved += text[before : item.start]
        places.append((len(moved), len(moved) + len(words_of[len(places)])))
        moved += words_of[len(places) - 1]
    moved += text[items[-1].end if items else 0 :]

    def place(old: int, is_start: bool) -> int:
        shift = 0
        for item, (start, end) in zip(items, places, strict=True):
            if item.start < old < item.end:
                return start if is_start else end
            if item.end < old or (item.end == old and (item.start < old or is_start)):
                shift = end - item.end
        return old + shift

    spans = [
        replace(x, start=start, end=max(start, place(x.end, x.start == x.end)))
        for x in segment.spans
        if x.replacement is None
        for start in [place(x.start, True)]
    ]
    pairs = zip(owners, places, strict=True)
    spans += [replace(span, start=start, end=end) for (_, span), (start, end) in pairs]
    bounds = sorted({0, *(place(cut, True) for cut in cuts), len(moved)})
    whole = {places[n] for n in copied}
    sentences = []
    for first, last in itertools.pairwise(bounds):
        piece = moved[first:last]
        if piece.strip():
            start = first + len(piece) - len(piece.lstrip())
            own = [(a, b) for a, b in places if first <= a < b <= last]
            ends = [first, *(x for bounds in own for x in bounds), last]
            others = "".join(moved[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True))
            is_copied = (first, last) in whole or not any(map(str.isalpha, others))
            kept = frozenset(moved[a:b] for a, b in own)
            sentences.append(_Sentence(index, start, piece.strip(), kept, is_copied))
    return Segment(moved, tuple(spans)), sentences


def _stand_ins(
    text: str, items: Sequence[Item], forms: WordForms
) -> tuple[list[str], set[int], list[int]]:
    """Returns what is written for each item, where the text is cut, and the items that are copied.

    The text is cut into sentences, and further if a sentence has more items than there are words.
    """
    masked = [*text]
    for start, end, kind in items:
        if kind == "name" and end > start:
            masked[start:end] = "A" + "a" * (end - start - 1)
    ends = sentence_ends("".join(masked))
    found: list[str] = []
    cuts, sentence = {*ends}, 0
    copied: list[int] = []
    of_sentence: list[str] = []
    for n, (start, end, kind) in enumerate(items):
        if bisect_right(ends, start) > sentence:
            sentence, of_sentence = bisect_right(ends, start), []
        own = text[start:end]
        pool = forms.numbers if kind == "number" else forms.names
        free = [x for x in pool if x == own or x not in text]
        if free and not {*free} - {*of_sentence} and kind != "mark":
            warnings.warn(f"The text is translated in parts: {text[:40]!r}", stacklevel=5)
            cuts.add(start)
            of_sentence = []
        usable = [x for x in free if x not in of_sentence]
        usable.sort(key=lambda x: (x != own, x in found))
        if kind == "mark":
            found.append("")
        elif usable:
            found.append(usable[0])
            of_sentence.append(usable[0])
        else:
            found.append(own)
            if kind == "name" and own:
                cuts |= {start, end}
                copied.append(n)
    return found, cuts, copied


def _translated(
    translator: Any, sentences: Sequence[_Sentence], marked: Sequence[bool], **settings: Any
) -> Iterator[tuple[int, _Block]]:
    """Yields the segment of each part of all sentences, and the part with its translation."""
    lines = [translator.word_forms.rewritten(x.text, x.kept) for x in sentences]
    texts = ["" if x.is_copied else y.text for x, y in zip(sentences, lines, strict=True)]
    groups = [x.segment for x in sentences]
    of_sentence: dict[int, list[AlignedPart]] = {}
    for found in translator.search_aligned(texts, groups, marked, **settings):
        of_sentence.setdefault(found.part.sentence, []).append(found)
    for index, (sentence, line) in enumerate(zip(sentences, lines, strict=True)):
        at, start, text = 0, sentence.start, sentence.text
        own = of_sentence.get(index, [])
        if not own:
            yield sentence.segment, _Block(start, text, text, same_text(text), is_copied=True)
        for found in own:
            at = line.text.index(found.part.text, at)
            source = text[at : at + len(found.part.text)]
            undo = line._replace(is_closed=line.is_closed and found is own[-1])
            yield sentence.segment, _block(start + at, source, found, undo, sentence.kept)
            at += len(found.part.text)


def _block(
    start: int, source: str, found: AlignedPart, line: Rewritten, kept: frozenset[str]
) -> _Block:
    """Returns a part, of which `source` is as it is written, and its translation as written."""
    part, text, alignment, scores = found
    target, places = line.places(text, kept)
    columns = [n for n, (_, end) in enumerate(alignment.source) if end <= len(source)]
    moved = [(places[first], places[last]) for first, last in alignment.target]
    rows = [n for n, (first, last) in enumerate(moved) if first < last]
    alignment = TokenAlignment(
        [alignment.source[n] for n in columns],
        [moved[n] for n in rows],
        alignment.shares[np.ix_(rows, columns)],
    )
    pairs = tuple(zip(text.split(), scores, strict=False))
    return _Block(start, source, target.rstrip(), alignment, line.is_upper, part.is_copied, pairs)


def _rendered(
    segment: Segment, blocks: Sequence[_Block], glossary: Glossary, escape: Callable[[str], str]
) -> TranslatedSegment:
    """Returns the translation of a segment with its markup and terms."""
    text = segment.text
    target, at, aligned = "", 0, []
    for before, block in zip([None, *blocks], blocks, strict=False):
        gap = text[at : block.start]
        if before and "\n" not in gap:
            left, right = (SourcePart(0, 0, [], x.source, 0) for x in (before, block))
            right = right._replace(first_word=len(left.text.split()) if gap else 0)
            gap = (gap or " ") if separator(left, before.target, right, block.target) else ""
        target += gap
        aligned.append((block.start, len(target), block.alignment))
        target += block.target
        at = block.start + len(block.source)
    target += text[at:]
    applied, spans = [], [*segment.spans]
    taken = [(x.start, x.end) for x in spans if x.replacement is not None]
    for start, end, translation in glossary.find(text):
        if not any(x < end and start < y for x, y in taken):
            is_upper = any(x.is_upper for x in blocks if x.start <= start < x.start + len(x.source))
            written = translation.upper() if is_upper else translation
            spans.append(Span(start, end, replacement=escape(written)))
            applied.append((text[start:end], translation))
    rendered = project(Segment(text, tuple(spans)), target, joined(aligned), escape)
    scores = tuple(score for block in blocks for score in block.word_scores)
    return TranslatedSegment(rendered, tuple(applied), scores)


def _verbatim(segment: Segment, escape: Callable[[str], str]) -> str:
    """Returns a segment without translation."""
    text, written = segment.text, []
    for place in range(len(text) + 1):
        ending = [x for x in segment.spans if x.start < x.end == place]
        empty = [x for x in segment.spans if x.start == x.end == place]
        written += [x.after for x in reversed(ending)]
        written += [f"{x.before}{x.replacement or ''}{x.after}" for x in empty]
        for x in segment.spans:
            if x.start == place < x.end:
                written += [x.before, x.replacement or ""]
        if not any(x.start <= place < x.end for x in segment.spans if x.replacement is not None):
            written.append(escape(text[place : place + 1]))
    return "".join(written)
