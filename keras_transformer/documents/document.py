"""Text of a file to translate: what stays, and segments that are put back in their places."""

import itertools
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.translation.base_translator import BaseTranslator, Progress
from keras_transformer.translation.markup import Segment, Span

if TYPE_CHECKING:
    from keras_transformer.translation.glossary import Glossary
    from keras_transformer.translation.segments import TranslatedSegment

Change = Callable[[str], str]
# Codes of source and target.
Languages = tuple[str | None, str | None]
TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][\w-]*)(?=[\s/>.])[^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
_BREAK = r"(?:\r\n|\n|\r(?!\n))"
_SPACE = re.compile(r"[ \t\r\n\f]+")
_OBJECT = "\ufffc"  # Unicode's character for an object in a text
# Elements that are open at once. Markup within more is written, but not paired.
_MOST_LEVELS = 50


class Document:
    """The text of a file, with a mark in the place of each segment.

    Attributes:
        escape: What writes text in the syntax of the file.
        errors: What to do with characters that the encoding lacks, as of `str.encode`.
        encoding: The encoding of the file.
        bom: The byte order mark of the file.
        text: The text with marks.
        segments: The segments in the order of their marks.
    """

    def __init__(self, escape: Change = str, errors: str = "strict") -> None:
        self.escape, self.errors = escape, errors
        self.encoding, self.bom, self.text = "utf-8", b"", ""
        self.segments: list[Segment] = []
        self._rewrites: list[Change] = []
        self._key = secrets.token_hex(4)  # No file has it by chance.

    def mark(self, segment: Segment, write: Change = str) -> str:
        """Adds a segment, and returns its mark. `write` gets the translation with its markup."""
        self.segments.append(segment)
        self._rewrites.append(write)
        return f"\0{self._key}:{len(self.segments) - 1}\0"

    def translate(
        self, translator: BaseTranslator, glossary: "Glossary | None", progress: Progress
    ) -> "tuple[bytes, list[TranslatedSegment]]":
        """Returns the content of the translated file, and its segments."""
        found = translator.translate_segments(
            self.segments, glossary=glossary, escape=self.escape, progress=progress
        )
        text = self.render([segment.text for segment in found])
        return self.bom + text.encode(self.encoding, self.errors), found

    def render(self, translations: Sequence[str]) -> str:
        """Returns the text with translations of its segments. Markup may have marks, too."""

        def written(found: re.Match[str]) -> str:
            number = int(found[1])
            return self._rewrites[number](mark.sub(written, translations[number]))

        mark = re.compile(f"\0{self._key}:([0-9]+)\0")
        return mark.sub(written, self.text)


class _Open(NamedTuple):
    """An element that is not closed yet, and what there was before it."""

    key: object
    markup: str
    text: int
    spans: int
    raw: int


class SegmentBuilder:
    """Collects the text and the inline markup of a segment."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._clear()

    def _clear(self) -> None:
        self.text = ""
        self._spans: list[Span] = []
        self._raw: list[str] = []
        self._open: list[_Open] = []

    def add_text(self, text: str, raw: str | None = None) -> None:
        """Adds text to translate, which the file may write otherwise, as `raw`."""
        self.text += text
        self._raw.append(text if raw is None else raw)

    def add_element(self, markup: str) -> None:
        """Adds markup without text."""
        self._spans.append(Span(len(self.text), len(self.text), markup))
        self._raw.append(markup)

    def add_opaque(self, markup: str) -> None:
        """Adds markup whose text stays as it is."""
        self._spans.append(Span(len(self.text), len(self.text) + 1, replacement=markup))
        self._raw.append(markup)
        self.text += _OBJECT

    def add_tagged(self, text: str, unescape: Change = str, write: Change = str) -> None:
        """Adds text with tags, as in HTML. `write` gets the tags, `unescape` the text."""
        at = 0
        for tag in [*TAG.finditer(text), None]:
            piece = text[at : tag.start() if tag else None]
            self.add_text(unescape(piece), write(piece))
            if tag is None:
                return
            at = tag.end()
            if tag["name"] is None:
                self.add_element(write(tag[0]))
            else:
                (self.close if tag["end"] else self.open)(tag["name"], write(tag[0]))

    def open(self, key: object, markup: str) -> None:
        """Begins an element. The next `close` with the same key ends it."""
        place = (len(self.text), len(self._spans), len(self._raw))
        self._raw.append(markup)
        self._open.append(_Open(key, markup, *place))

    def close(self, key: object, markup: str) -> None:
        """Ends an element. Markup without its other half is markup without text."""
        numbers = [n for n, x in enumerate(self._open[:_MOST_LEVELS]) if x.key == key]
        if not numbers:
            return self.add_element(markup)
        self._give_up(numbers[-1] + 1)
        opened = self._open.pop()
        self._raw.append(markup)
        inner = self._spans[opened.spans :]
        del self._spans[opened.spans :]
        start = opened.text
        if not self.text[start:].strip():
            self.text = self.text[:start]
            self._spans.append(Span(start, start, "".join(self._raw[opened.raw :])))
            return None
        first, start, last, end = self._edges(start, inner)
        span = Span(start, end, opened.markup + first, last + markup)
        self._spans += [span, *inner]
        return None

    def _give_up(self, first: int) -> None:
        """Elements that are not closed become markup without text."""
        for x in reversed(self._open[first:]):
            self._spans.insert(x.spans, Span(x.text, x.text, x.markup))
        del self._open[first:]

    def _edges(self, start: int, spans: list[Span]) -> tuple[str, int, str, int]:
        """Takes markup without text at both ends of a part out of its spans, as it stays there.

        Returns what there is at the beginning, where the rest begins, and the same for the end.
        """
        first, last, end = "", "", len(self.text)

        def is_element(span: Span, start: int, end: int) -> bool:
            return span.start == span.end and not self.text[start:end].strip()

        while spans and is_element(spans[0], start, spans[0].start):
            first += self._space(start, spans[0].start) + spans[0].before
            start = spans.pop(0).start
        while spans and is_element(spans[-1], spans[-1].start, end):
            last = spans[-1].before + self._space(spans[-1].start, end) + last
            end = spans.pop().start
        if first:
            word = len(self.text) - len(self.text[start:].lstrip())
            first, start = first + self._space(start, word), word
        if last:
            word = len(self.text[:end].rstrip())
            last, end = self._space(word, end) + last, word
        return first, start, last, end

    def _space(self, start: int, end: int) -> str:
        return self.document.escape(self.text[start:end])

    def build(self, write: Change = str) -> str:
        """Returns the mark of the collected segment with what stays around it, and forgets it.

        Text without letters stays, as do white space and markup at both ends.
        """
        self._give_up(0)
        found = "".join(self._raw)
        if any(map(str.isalpha, self.text)):
            first, start, last, end = self._edges(0, self._spans)
            left = len(self.text) - len(self.text[start:].lstrip())
            right = len(self.text[:end].rstrip())
            mark = self.document.mark(self._segment(left, right), write)
            # `close` has taken white space beside markup into the markup.
            if not any(x.start == left and x.before[-1:].isspace() for x in self._spans):
                first += self._space(start, left)
            if not any(x.end == right and x.after[:1].isspace() for x in self._spans):
                last = self._space(right, end) + last
            found = first + mark + last
        self._clear()
        return found

    def _segment(self, start: int, end: int) -> Segment:
        """Returns a part of the text, in which white space is a single space beside elements."""
        places = [min(max(x, start), end) for span in self._spans for x in (span.start, span.end)]
        ends = sorted({start, end, *places})
        pieces = [_SPACE.sub(" ", self.text[i:j]) for i, j in itertools.pairwise(ends)]
        moved = dict(zip(ends, itertools.accumulate(map(len, pieces), initial=0), strict=True))
        spans = (
            replace(span, start=moved[first], end=moved[last])
            for span, first, last in zip(self._spans, places[::2], places[1::2], strict=True)
        )
        return Segment("".join(pieces), tuple(spans))


def with_marks(document: Document, text: str, write: Change = str, unescape: Change = str) -> str:
    """Returns a text with marks for its paragraphs, which keep their number of lines.

    A new paragraph begins with a blank or indented line, or with a dash, as in a dialogue. `write`
    gets each part.
    """
    builder, found = SegmentBuilder(document), []
    for part in re.split(rf"({_BREAK}(?=\s|[-–—*•])|(?:(?<=[\r\n])|^)\s*[-–—*•]\s+)", text):
        if re.fullmatch(rf"{_BREAK}|\s*[-–—*•]\s+|", part):
            found.append(write(part))
            continue
        lengths = [len(TAG.sub("", x)) for x in re.split(_BREAK, part.strip())]
        line_break = re.search(_BREAK, part.strip())
        builder.add_tagged(part, unescape)
        broken = partial(_in_lines, lengths=lengths, line_break=line_break and line_break[0])
        found.append(write(builder.build(partial(_after, broken, write))))
    return "".join(found)


def _after(first: Change, then: Change, text: str) -> str:
    return then(first(text))


def _in_lines(text: str, lengths: list[int], line_break: str | None) -> str:
    """Breaks a text with tags into as many lines as there are lengths, in their proportion."""
    width, spaces, others = 0, list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    for x in re.finditer(rf"{TAG.pattern}|&#?\w+;|\s+|.", text):
        is_tag = TAG.fullmatch(x[0]) is not None
        if width and not is_tag:
            places, start = (spaces, x.start()) if x[0].isspace() else (others, x.start())
            places.append((width, start, x.end() if x[0].isspace() else start))
        width += not is_tag
    found, last, count = [], 0, len(lengths)
    places = spaces if len(spaces) >= count - 1 else sorted(spaces + others)
    for number in range(1, min(count, len(places) + 1)):
        ideal = width * sum(lengths[:number]) / sum(lengths)
        free = places[: max(1, len(places) - (count - 1 - number))]
        best = min(free, key=lambda place: abs(place[0] - ideal))
        places = places[places.index(best) + 1 :]
        found.append(text[last : best[1]])
        last = best[2]
    return (line_break or "").join([*found, text[last:]])


def with_attribute(tag: str, name: str, value: str) -> str:
    """Returns a tag of HTML or XML that has an attribute."""
    written = rf"""(?<=[\s"']){name}\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"']+)"""
    changed, count = re.subn(written, f'{name}="{value}"', tag, count=1, flags=re.I)
    return changed if count else re.sub(r"\s*/?>\Z", rf' {name}="{value}"\g<0>', tag)
