"""Text of a file to translate: what stays, and segments that are put back in their places."""

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from keras_transformer.translation.base_translator import BaseTranslator, Progress
from keras_transformer.translation.glossary import Glossary
from keras_transformer.translation.markup import Segment, Span
from keras_transformer.translation.segments import TranslatedSegment

Change = Callable[[str], str]
# Codes of source and target.
Languages = tuple[str | None, str | None]
# Not the names in directives of C and Ruby such as `%<PRIu32>` and `%<count>d`.
TAG = re.compile(
    r"<(?!PRI[diouxX]\w*>|(?<=%<)\w+>[\d.]*[A-Za-z](?!\w))"
    r"(?P<end>/?)(?P<name>[A-Za-z][\w-]*(?=[\s/>.])|\d+(?=/?>))[^<>]*>|<[\d:.]+>|\{\\[^{}]*\}"
)
# A tag, or an element whose text stays.
_TAG_OR_CODE = re.compile(
    rf"<(?P<code>code|kbd|nowiki|pre|samp|var)\b[^<>]*>.{{0,1000}}?</(?P=code)>|{TAG.pattern}",
    re.DOTALL,
)
BREAK = r"(?:\r\n|\n|\r(?!\n))"
ITEM = "[-–—*•]"
# What begins a paragraph, such as a line of a dialogue, which may have the name of the speaker.
BEGIN = rf"(?:\s|{ITEM}|[A-ZÀ-Þ]{{2}}[^:\r\n]{{0,30}}:\s)"
_SPACE = re.compile(r"[ \t\r\n\f]+")
# What separates the parts of a menu or a title.
_SEPARATOR = re.compile(
    r"((?<!\s)(?<!&nbsp;)(?:\s|&nbsp;)++(?:[|·•]|&middot;|&bull;)(?:\s|&nbsp;)+)"
)
# What separates the forms of a message for different numbers: "{0} No car|{1} A car|[2,*] Cars".
_RANGE = r"(?:\{\d+\}|[\[\]][^\s,|]+,[^\s,|]+[\[\]])\s*"
_FORM = re.compile(rf"((?<=[^\s|])\|(?:{_RANGE})?(?=[^\s|])|\A{_RANGE}(?=[^|]+\|\S))")
_JOINT = re.compile(r"[^\w\s]+|\s*\+\s*")  # between two parts of code, such as keys
_OBJECT = "\ufffc"  # Unicode's character for an object in a text
_NEAR = 5  # characters by which a line may be longer or shorter to end after a mark
# Elements of HTML that begin a text of their own.
_BLOCKS = set("blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p table td th tr ul".split())
# Elements that are open at once. Markup within more is written, but not paired.
_MOST_LEVELS = 50


@dataclass
class Document:
    """The text of a file, with a mark in the place of each segment.

    Attributes:
        escape: What writes text in the syntax of the file.
        encoding: The encoding of the file.
        bom: The byte order mark of the file.
        text: The text with marks.
        segments: The segments in the order of their marks.
    """

    escape: Change = str
    encoding: str = "utf-8"
    bom: bytes = b""
    text: str = ""
    segments: list[Segment] = field(default_factory=list)
    # What each mark stands for: text with marks, or None for the next segment, and what writes it.
    _parts: list[tuple[str | None, Change]] = field(default_factory=list)
    _key: str = field(default_factory=partial(secrets.token_hex, 4))  # No file has it by chance.

    def mark(self, segment: Segment, write: Change = str) -> str:
        """Adds a segment, and returns its mark. `write` gets the translation with its markup."""
        self.segments.append(segment)
        return self.mark_part(None, write)

    def mark_part(self, text: str | None, write: Change) -> str:
        """Returns a mark for text with marks, which `write` gets with its translations."""
        self._parts.append((text, write))
        return f"\0{self._key}:{len(self._parts) - 1}\0"

    def translate(
        self, translator: BaseTranslator, glossary: Glossary | None, progress: Progress
    ) -> tuple[bytes, list[TranslatedSegment]]:
        """Returns the content of the translated file, and its segments."""
        found = translator.translate_segments(
            self.segments, glossary=glossary, escape=self.escape, progress=progress
        )
        text = self.render([segment.text for segment in found])
        # Only HTML and XML can have an encoding that lacks characters.
        return self.bom + text.encode(self.encoding, "xmlcharrefreplace"), found

    def render(self, translations: Sequence[str]) -> str:
        """Returns the text with translations of its segments. Markup may have marks, too."""

        def written(found: re.Match[str]) -> str:
            text, write = parts[int(found[1])]
            return write(mark.sub(written, text))

        mark, left = re.compile(f"\0{self._key}:([0-9]+)\0"), iter(translations)
        parts = [(next(left) if text is None else text, write) for text, write in self._parts]
        return mark.sub(written, self.text)


class Piece(NamedTuple):
    """A part of a file: text, a tag, or other markup.

    Attributes:
        kind: What it is. A tag is the "begin" or "end" of an element. An "element" has no text to
            translate, and neither has what is "opaque", but that stands for a word. Text never goes
            beyond a "block".
        raw: Its characters in the file.
        text: What text says.
        name: What a begin and its end have in common.
        attributes: The attributes of a tag.
    """

    kind: Literal["text", "begin", "end", "element", "opaque", "block"]
    raw: str
    text: str = ""
    name: str = ""
    attributes: Mapping[str, str | None] = {}


def whole_elements(pieces: Iterable[Piece], stays: Callable[[Piece], bool]) -> Iterator[Piece]:
    """Yields the pieces, but elements that stay as one opaque piece with all that they contain."""
    kept: list[Piece] = []
    depth = 0
    for piece in pieces:
        if not kept and not (piece.kind == "begin" and stays(piece)):
            yield piece
            continue
        kept.append(piece)
        depth += ((piece.kind == "begin") - (piece.kind == "end")) * (piece.name == kept[0].name)
        if not depth:
            yield kept[0]._replace(kind="opaque", raw=_raw(kept))
            kept = []
    if kept:
        yield Piece("block", _raw(kept))


def separated(text: str, read: Change = str, write: Change = str) -> Iterator[Piece]:
    """Yields the pieces of a text without tags: what is between separators, such as `|` in a menu.

    For the arguments, see `tagged`.
    """
    for n, part in enumerate(_SEPARATOR.split(text)):
        yield Piece("block" if n % 2 else "text", write(part), read(part))


def tagged(text: str, read: Change = str, write: Change = str) -> Iterator[Piece]:
    """Yields the pieces of a text with tags, as in HTML, which the file writes by `write`.

    `read` gets the text between tags. The forms of a message for different numbers are apart.
    """
    forms = _FORM.split(text)
    if len(forms) > 1 and _are_whole([x for x in forms[::2] if x]):
        for n, form in enumerate(forms):
            yield from [Piece("block", write(form))] if n % 2 else tagged(form, read, write)
        return
    at = 0
    for tag in [*_TAG_OR_CODE.finditer(text), None]:
        between = text[at : tag.start() if tag else None]
        yield from separated(between, read, write)
        if tag and tag["code"]:
            yield Piece("opaque", write(tag[0]))
        elif tag:
            name = tag["name"] or ""
            kind: Any = "end" if tag["end"] else "begin" if name else "element"
            yield Piece("block" if name.lower() in _BLOCKS else kind, write(tag[0]), name=name)
        at = tag.end() if tag else at


def _are_whole(parts: Sequence[str]) -> bool:
    """Returns whether all or none are one word, and none cuts a quotation, brackets or a tag."""
    return len({" " in part for part in parts}) == 1 and all(
        [*map(part.count, "([{<")] == [*map(part.count, ")]}>")] and part.count('"') % 2 == 0
        for part in parts
    )


def marked(document: Document, pieces: Iterable[Piece], write: Change = str) -> str:
    """Returns the characters of pieces with a mark for the text between two blocks.

    Text without letters stays, as do white space and markup at both ends. `write` is as of
    `Document.mark`.
    """
    found = ""
    for is_block, group in itertools.groupby(pieces, lambda piece: piece.kind == "block"):
        own = _with_whole_code(group)
        if not is_block and any(map(str.isalpha, "".join(piece.text for piece in own))):
            before, inner, after = _edges(_elements(own, document.escape))
            mark = document.mark(_segment(inner), write)
            found += f"{_raw(before)}{mark}{_raw(after)}"
        else:
            found += _raw(own)
    return found


def _with_whole_code(pieces: Iterable[Piece]) -> list[Piece]:
    """Returns pieces in which code such as `Ctrl`+`C` is one opaque piece."""
    found: list[Piece] = []
    for piece in pieces:
        found.append(piece)
        if piece.kind == "opaque" and [x.kind for x in found[-3:-1]] == ["opaque", "text"]:
            if _JOINT.fullmatch(found[-2].text):
                found[-3:] = [piece._replace(raw=_raw(found[-3:]))]
    return found


def _raw(pieces: Iterable[Piece]) -> str:
    return "".join(piece.raw for piece in pieces)


def _elements(pieces: Iterable[Piece], escape: Change) -> list[Piece]:
    """Returns pieces in which each begin has its end. All other tags are elements.

    So are pairs of tags without text. White space and elements at both ends of an element are no
    part of its text.
    """
    found: list[Piece] = []
    opened: list[int] = []  # the places of tags whose end is not found yet
    for piece in pieces:
        if words := piece.text.strip():
            before, _, after = piece.text.partition(words)
            found += [Piece("text", escape(x), x) for x in (before, words, after) if x]
            continue
        found.append(piece._replace(kind="element") if piece.kind in ("begin", "end") else piece)
        names = [found[n].name for n in opened[:_MOST_LEVELS]]
        if piece.kind == "begin":
            opened.append(len(found) - 1)
        elif piece.kind == "end" and piece.name in names:
            level = len(names) - 1 - names[::-1].index(piece.name)
            start = opened[level]
            del opened[level:]
            found[start:] = _element(found[start:])
    return found


def _element(pieces: Sequence[Piece]) -> list[Piece]:
    """Returns the pieces of an element, from its begin to its end."""
    before, inner, after = _edges(pieces[1:-1])
    if not inner:
        return [Piece("element", _raw(pieces))]
    first, spaces_before = _moved(before)
    last, spaces_after = _moved(after)
    begin, end = Piece("begin", pieces[0].raw + first), Piece("end", last + pieces[-1].raw)
    return [*spaces_before, begin, *inner, end, *spaces_after]


def _edges(pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Piece], Sequence[Piece]]:
    """Divides pieces into those before the text, the text with its markup, and those after it."""
    of_text = [
        n
        for n, piece in enumerate(pieces)
        if piece.kind in ("begin", "end", "opaque") or piece.text.strip()
    ]
    start, end = (of_text[0], of_text[-1] + 1) if of_text else (0, 0)
    return pieces[:start], pieces[start:end], pieces[end:]


def _moved(edge: Sequence[Piece]) -> tuple[str, list[Piece]]:
    """Returns markup that becomes part of a tag, and the white space outside of the element."""
    spaces = [piece for piece in edge if piece.kind == "text"]
    if len(spaces) == len(edge):
        return "", spaces
    return _raw(edge), [piece._replace(raw="") for piece in spaces]


def _segment(pieces: Iterable[Piece]) -> Segment:
    """Returns the text of pieces, in which white space is a space, and its spans."""
    text, spans, opened = "", list[Span](), list[int]()
    for kind, group in itertools.groupby(pieces, lambda piece: piece.kind):
        if kind == "text":
            text += _SPACE.sub(" ", "".join(piece.text for piece in group))
            continue
        for piece in group:
            place = len(text)
            if kind == "opaque":
                text += _OBJECT
                spans.append(Span(place, place + 1, replacement=piece.raw))
            elif kind == "end":
                number = opened.pop()
                spans[number] = replace(spans[number], end=place, after=piece.raw)
            else:
                opened += [len(spans)] if kind == "begin" else []
                spans.append(Span(place, place, piece.raw))
    return Segment(text, tuple(spans))


def with_marks(
    document: Document,
    text: str,
    write: Change = str,
    read: Callable[[str], Iterable[Piece]] = tagged,
) -> str:
    """Returns a text with marks for its paragraphs, which keep their number of lines.

    A new paragraph begins with a blank or indented line, with a dash, or with a speaker's name.
    `write` gets each part, of which `read` returns the pieces.
    """
    found = []
    for part in re.split(rf"({BREAK}(?={BEGIN})|(?:(?<=[\r\n])|^)\s*{ITEM}\s+)", text):
        for _, group in itertools.groupby(read(part), lambda piece: piece.kind == "block"):
            pieces = [*group]
            written = partial(in_lines, like=_raw(pieces), write=write)
            found.append(write(marked(document, pieces, written)))
    return "".join(found)


def in_lines(text: str, like: str, write: Change = str, line_end: str = BREAK) -> str:
    """Breaks a text with tags into as many lines as another has, in proportion to their lengths.

    A line rather ends after a mark. `line_end` is a pattern for what is between the lines of
    `like`: if there are fewer lines, all of it stays but line breaks.
    """
    parts = re.split(f"({line_end})", like.strip())
    lengths, ends = [len(TAG.sub("", line)) for line in parts[::2]], parts[1::2]
    width, places = 0, list[tuple[int, int, int]]()
    for x in re.finditer(rf"{TAG.pattern}|&#?\w+;|\s+|.", text):
        is_tag = TAG.fullmatch(x[0]) is not None
        if width and not is_tag:
            places.append((width, x.start(), x.end() if x[0].isspace() else x.start()))
        width += not is_tag
    found, last, count = "", 0, len(ends)
    spaces = [x for x in places if x[1] < x[2]]
    places = spaces if len(spaces) >= count else places
    for number, end in enumerate(ends, 1):
        if places:
            ideal = width * sum(lengths[:number]) / sum(lengths)
            free = places[: max(1, len(places) - (count - number))]
            best = min(free, key=lambda x: abs(x[0] - ideal) - _NEAR * (text[x[1] - 1] in ",;:"))
            places = places[places.index(best) + 1 :]
            found += text[last : best[1]] + end
            last = best[2]
        elif not re.fullmatch(BREAK, end):
            found += end
    return write(found + text[last:])


def with_attribute(tag: str, name: str, value: str) -> str:
    """Returns a tag of HTML or XML that has an attribute."""
    written = rf"""(?<=[\s"']){name}\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"']+)"""
    changed, count = re.subn(written, f'{name}="{value}"', tag, count=1, flags=re.I)
    return changed if count else re.sub(r"\s*/?>\Z", rf' {name}="{value}"\g<0>', tag)
