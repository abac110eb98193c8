"""Translates texts with markup: splits sentences, protects what must stay, and projects markup."""

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import regex

from keras_transformer.translation.alignment import AlignedPart, TokenAlignment, joined, same_text
from keras_transformer.translation.edges import edges
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.long_lines import (
    is_invisible,
    sentence_ends,
    separator,
    warn_of_copies,
)
from keras_transformer.translation.markup import Segment, Span, project, widened, write
from keras_transformer.translation.protected_text import Kind, protected
from keras_transformer.translation.unread_marks import without_marks
from keras_transformer.translation.word_forms import Rewritten, WordForms

# Up to three words before a sentence, such as "Note:".
_LABEL = regex.compile(r"\w[\w'’.-]*(?: [\w'’.-]+){0,2}:\s+(?=\p{Lu})")
_LETTER = regex.compile(r"\s*\p{Lu}:\s*")  # as in "Q: Is it late?"
_REPEATED = regex.compile(r"[!?]{2}\s*$")  # after a sentence
# A mark between two clauses or words, as in "tea & coffee", or cells of a table.
_BETWEEN = regex.compile(
    r"(?<=\w[\p{Pe}\p{Pf}\"']*)"
    r"(?:(?P<mark>;)(?=\s)|\s+(?P<mark>[\p{Sm}&/*]|\p{Pd}+|[-=]+>|\d{1,2}\))(?=\s)|(?<=\p{L}{2})(?P<mark>[/–—])(?=\p{L}{2}))"
    r"(?=.*\p{L})|(?P<mark>\t+)"
)
# What stays and divides a text: a line break, as in "\\n" and "<br>", and the key of a message.
_DIVIDER = regex.compile(r"\\[nrt]|<[bh]r|[\"\w].*[:=]$")
# A part of a segment that stays, and what it looks like to the reader.
_Kept = tuple[Span, Kind]


class TranslatedSegment(NamedTuple):
    """The translation of a segment.

    Attributes:
        text: The translation with its markup.
        terms: The terms of the glossary that were applied, each with its translation.
        word_scores: Each word of the translation without markup, and the mean log-probability
            (nats) of its pieces, 0 for copied text. Stand-ins are in place of what stays, and the
            words of parts that are translated alone, such as those in brackets, come last. None if
            they were not requested.
    """

    text: str
    terms: tuple[tuple[str, str], ...] = ()
    word_scores: tuple[tuple[str, float], ...] | None = None


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


def needs_segment(text: str, forms: WordForms) -> bool:
    """Returns whether a text has what only a segment keeps, besides numbers and its `edges`."""
    if not any(map(str.isalpha, text)):
        return not is_invisible(text)
    _, own, _ = edges(text.strip())
    return bool(
        (forms.lacks(":") and _LABEL.match(text))
        or _clauses(text, forms)
        or any(
            edges(text[n:])[0] or _REPEATED.search(text[max(0, n - 9) : n])
            for n in sentence_ends(text)
        )
        or without_marks(Segment(text), forms)[0].text != text
        or any(_is_unread(own[x:y], kind, forms) for x, y, kind in protected(own, forms))
    )


def _is_unread(part: str, kind: Kind, forms: WordForms) -> bool:
    """Returns whether a part that stays is no number or symbol that the training text has."""
    ends = (x for x in (part[0], part[-1]) if not x.isdecimal())
    return kind in ("name", "emphasis") or any(map(forms.lacks, ends))


def translate_segments(
    translator: Any,
    segments: Sequence[Segment],
    glossary: Glossary | None,
    escape: Callable[[str], str],
    word_scores: bool,
    progress: bool | Callable[[int], Any],
) -> list[TranslatedSegment]:
    """Does the work of `BaseTranslator.translate_segments`."""
    forms, terms = translator.word_forms, glossary or Glossary({})
    split = [without_marks(segment, forms, escape) for segment in segments]
    asides = [aside for _, own in split for _, aside in own]
    settings = glossary, escape, word_scores, False
    of_asides = iter(translate_segments(translator, asides, *settings) if asides else [])
    found = [[next(of_asides) for _ in own] for _, own in split]
    whole = []
    for (segment, own), parts in zip(split, found, strict=True):
        places = []
        for (place, aside), x in zip(own, parts, strict=True):
            written = place.before + forms.within(aside.text, x.text) + place.after
            places.append(replace(place, before="", after=written))
        whole.append(segment._replace(spans=(*segment.spans, *places)))
    ready, sentences = _protect_all(translator, whole, escape)
    marked = [bool(x.spans or [*terms.find(x.text)]) for x in ready]
    blocks: list[list[_Block]] = [[] for _ in whole]
    for index, block in _translated(translator, sentences, marked, word_scores, progress):
        blocks[index].append(block)
    results = []
    for segment, rewritten, of_segment, parts in zip(whole, ready, blocks, found, strict=True):
        if all(block.is_copied for block in of_segment):
            result = TranslatedSegment(write(segment, escape), (), _certain(segment.text))
        else:
            result = _rendered(rewritten, of_segment, terms, forms, escape)
        applied = sum((part.terms for part in parts), result.terms)
        scores = (score for x in (result, *parts) for score in x.word_scores or ())
        of_words = tuple(scores) if word_scores else None
        results.append(TranslatedSegment(result.text, applied, of_words))
    return results


def _protect_all(
    translator: Any, segments: Sequence[Segment], escape: Callable[[str], str]
) -> tuple[list[Segment], list[_Sentence]]:
    """Does the same as `_protect` for segments. Those of a foreign script have no sentences."""
    ready, sentences = [*segments], list[_Sentence]()
    foreign = [translator.word_forms.is_foreign(segment.text) for segment in segments]
    warn_of_copies([segment.text for segment in itertools.compress(segments, foreign)])
    for index, segment in enumerate(segments):
        if not foreign[index]:
            ready[index], found = _protect(index, segment, translator.copied_words, escape)
            sentences += found
    return ready, sentences


def _protect(
    index: int, segment: Segment, forms: WordForms, escape: Callable[[str], str]
) -> tuple[Segment, list[_Sentence]]:
    """Returns a segment with words that the model copies for all that stays, and its sentences."""
    text, markup = segment.text, [*segment.spans]
    kept: list[_Kept] = [(x, "name") for x in markup if x.replacement is not None]
    found: list[_Kept] = []
    clauses = _clauses(text, forms)  # such a mark is alone, and stays
    for start, end, kind in protected(text, forms):
        if kind == "emphasis":
            markup.append(Span(start, end, is_upper=True))
        elif start not in clauses and not any(x.start < end and start < x.end for x, _ in kept):
            # It has the markup inside, as in H<sub>2</sub>O; a mark also that which encloses it.
            inside = [x for x in markup if start <= x.start < end and start < x.end <= end]
            own = [x for x in inside if kind == "mark" or (x.start, x.end) != (start, end)]
            markup = [x for x in markup if x not in own]
            inner = (replace(x, start=x.start - start, end=x.end - start) for x in own)
            written = write(Segment(text[start:end], tuple(inner)), escape)
            span = Span(start, end, replacement=written)
            found.append((Span(start, end, before=written) if kind == "mark" else span, kind))
    kept = sorted(kept + found, key=lambda x: (x[0].start, x[0].end))
    words, cuts = _stand_ins(text, kept, forms)
    # Each character of the text, or what is written for it, and between them what is inserted.
    slots = [""] * (2 * len(text) + 1)
    slots[1::2] = text
    for (x, _), word in zip(kept, words, strict=True):
        first, count = 2 * x.start + (x.start < x.end), 2 * (x.end - x.start)
        slots[first : first + max(1, count - 1)] = [word, *[""] * (count - 2)]
    ends = [0, *itertools.accumulate(map(len, slots))]

    def moved(x: Span) -> Span:
        is_word = x.start == x.end and x.replacement is not None
        start, end = ends[2 * x.start + (not is_word)], ends[2 * x.end + (x.start == x.end)]
        return replace(x, start=start, end=end)

    text = "".join(slots)
    spans = map(moved, widened([*markup, *(x for x, _ in found)]))
    places = [(x.start, x.end) for x in (moved(x) for x, _ in kept) if x.start < x.end]
    bounds = sorted({0, *(ends[2 * cut + 1] for cut in cuts), len(text)})
    sentences = (_sentence(index, text, *pair, places) for pair in itertools.pairwise(bounds))
    return Segment(text, tuple(spans)), [x for x in sentences if x.text]


def _sentence(
    index: int, text: str, first: int, last: int, places: Sequence[tuple[int, int]]
) -> _Sentence:
    """Returns a sentence of a segment, which has words that the model copies in some places."""
    own = [(start, end) for start, end in places if first <= start and end <= last]
    copied = {n for start, end in own for n in range(start, end)}
    piece = text[first:last]
    is_copied = not any(text[n].isalpha() for n in range(first, last) if n not in copied)
    is_copied = is_copied or bool(_LETTER.fullmatch(piece))
    start = first + len(piece) - len(piece.lstrip())
    kept = frozenset(text[a:b] for a, b in own)
    return _Sentence(index, start, piece.strip(), kept, is_copied)


def _stand_ins(text: str, kept: Sequence[_Kept], forms: WordForms) -> tuple[list[str], set[int]]:
    """Returns what is written for each part that stays, and where the text is cut.

    The text is cut into sentences, and further if a sentence has more such parts than there are
    words that the model copies. A part for which there is no word is alone.
    """
    masked = [*text]
    for x, kind in kept:
        if kind == "name" and x.end > x.start:
            masked[x.start : x.end] = "A" + "a" * (x.end - x.start - 1)
    whole = "".join(masked)
    ends = sentence_ends(whole)
    pools = {"name": forms.names, "number": forms.numbers, "mark": ()}
    found, of_sentence = list[str](), list[str]()
    cuts, sentence = {*ends}, 0
    for start, end in itertools.pairwise((0, *ends, len(text))) if forms.has_sentences else ():
        piece = whole[start:end]
        head, own, _ = edges(piece.strip())
        first, label = start + piece.index(head + own) + len(head), _LABEL.match(own)
        cuts |= {first, first + (label.end() if label else 0), first + len(own)}
        cuts |= {start + n for n in _clauses(piece, forms)}
    for x, kind in kept:
        own = text[x.start : x.end]
        if bisect_right(ends, x.start) > sentence:
            sentence, of_sentence = bisect_right(ends, x.start), []
        free = [word for word in pools[kind] if word == own or word not in text]
        if free and not {*free} - {*of_sentence}:
            warnings.warn(f"The text is translated in parts: {text[:40]!r}", stacklevel=5)
            cuts.add(x.start)
            of_sentence = []
        usable = [word for word in free if word not in of_sentence]
        usable.sort(key=lambda word: (word != own, word in found))
        word = [*usable, "" if kind == "mark" else own][0]
        found.append(word)
        of_sentence.append(word)
        if kind == "name" and own and (not usable or _DIVIDER.match(own)):
            cuts |= {x.start, x.end}
    return found, cuts


def _clauses(text: str, forms: WordForms) -> set[int]:
    """Returns where a text is cut, because the training text lacks the mark that is there."""
    found = (x for x in _BETWEEN.finditer(text) if forms.lacks(x["mark"]))
    return {place for x in found for place in x.span("mark")}


def _translated(
    translator: Any, sentences: Sequence[_Sentence], marked: Sequence[bool], *settings: Any
) -> Iterator[tuple[int, _Block]]:
    """Yields the segment of each part of all sentences, and the part with its translation."""
    lines = [translator.word_forms.rewritten(x.text, x.kept) for x in sentences]
    texts = ["" if x.is_copied else y.text for x, y in zip(sentences, lines, strict=True)]
    groups = [x.segment for x in sentences]
    of_sentence: dict[int, list[AlignedPart]] = {}
    for found in translator.search_aligned(texts, groups, marked, *settings):
        of_sentence.setdefault(found.part.sentence, []).append(found)
    for index, (sentence, line) in enumerate(zip(sentences, lines, strict=True)):
        at, start, text = 0, sentence.start, sentence.text
        own = of_sentence.get(index, [])
        if not own:
            copy = _Block(start, text, text, same_text(text), False, True, _certain(text))
            yield sentence.segment, copy
        for found in own:
            at, is_last = line.text.index(found.part.text, at), found is own[-1]
            source = text[at:] if is_last else text[at : at + len(found.part.text)]
            undo = line if is_last else line._replace(end=None)
            yield sentence.segment, _block(start + at, source, found, undo, sentence.kept)
            at += len(source)


def _block(
    start: int, source: str, found: AlignedPart, line: Rewritten, kept: frozenset[str]
) -> _Block:
    """Returns a part, of which `source` is as it is written, and its translation as written."""
    part, text, alignment, scores = found
    target, places = line.places(text, kept)
    moved = [(places[first], places[last]) for first, last in alignment.target]
    rows = [n for n, (first, last) in enumerate(moved) if first < last]
    alignment = TokenAlignment(alignment.source, [moved[n] for n in rows], alignment.shares[rows])
    pairs = tuple(zip(text.split(), scores, strict=False))
    return _Block(start, source, target.rstrip(), alignment, line.is_upper, part.is_copied, pairs)


def _certain(copy: str) -> tuple[tuple[str, float], ...]:
    return tuple((word, 0.0) for word in copy.split())


def _rendered(
    segment: Segment,
    blocks: Sequence[_Block],
    glossary: Glossary,
    forms: WordForms,
    escape: Callable[[str], str],
) -> TranslatedSegment:
    """Returns the translation of a segment with its markup and terms."""
    text = segment.text
    target, at, aligned = "", 0, []
    mark, _, _ = edges(text.strip())  # such as that of an item
    for before, block in zip([None, *blocks], blocks, strict=False):
        gap = text[at : block.start]
        if before and any(at < x.start == x.end < block.start for x in segment.spans):
            gap = regex.sub(" +", " ", gap)  # A mark between them has one of its own.
        if before and not {*"\n\t"} & {*gap}:
            texts = before.source, before.target, block.source, block.target
            gap = (gap or " ") if separator(*texts, has_space=bool(gap)) else ""
        target += gap
        aligned.append((block.start, len(target), block.alignment))
        is_first = text[: block.start].strip() == mark.strip()
        is_first &= not any(x.start == x.end < block.start and x.after for x in segment.spans)
        target += block.target if is_first else forms.within(block.source, block.target)
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
