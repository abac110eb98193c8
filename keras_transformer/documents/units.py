"""Finds the messages of PO files and the units of XLIFF files that have no translation yet."""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax import saxutils

import regex

from keras_transformer.data.languages import closest_language
from keras_transformer.data.parallel_text import po_entries
from keras_transformer.data.text_files import CorpusError
from keras_transformer.documents.document import (
    Document,
    Languages,
    Piece,
    marked,
    tagged,
    whole_elements,
    with_attribute,
    with_marks,
)

_STRING = r'"(?:[^"\\]|\\.)*"'
_TARGET = re.compile(rf"^([ \t]*msgstr(?:\[(\d+)\])?[ \t]+){_STRING}(?:\s+{_STRING})*", re.M)
# Formats whose arguments can have numbers, and their directives without one. %% and %m have none.
_NUMBERED = {f"{x}-format" for x in ("c", "objc", "perl", "php", "java-printf", "awk", "tcl")}
_DIRECTIVE = re.compile(
    r"%%|%[-+0#']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:<PRI\w+>|(?:hh?|ll?|[zjtLq])?[A-Za-z@])"
)
_CODES = regex.compile(
    r"E<lt>[^<>\n]{1,200}?E<gt>|((?<![^\W\d_])[A-Z]|E)"
    r"(?:<<\s(?:(?!\s>>).){1,200}+\s>>|<(?:[^<>]++|<[^<>]*+>)*+>)"
)
_EMPHASIZED = regex.compile(r"[\p{L}\p{M}][\p{L}\p{M} ,.;:!?'’]*+")


def _check_languages(found: Languages, wanted: Languages, path: Path) -> None:
    """Raises `CorpusError` if the languages of a file are not those of the model."""
    for name, language, own in zip(("source", "target"), found, wanted, strict=True):
        if language and own and not closest_language(own, [language], True):
            raise CorpusError(
                f"{path}: its {name} language must be that of the model, {own}. "
                f"Received: {language}"
            )


def read_po(text: str, languages: Languages, path: Path) -> Document:
    """Finds the messages without a translation. With it, they are fuzzy: someone checks them."""
    from polib import escape

    entries, document = po_entries(text.encode(), path), Document()
    lines = [0, *(x.end() for x in re.finditer("\n", text)), len(text)]
    # The first of a file without a header has the number 0.
    starts = [lines[max(0, entry.linenum - 1)] for entry in entries]
    header = text[: min(starts, default=len(text))]
    language = re.search(r'^"Language:[ ]*([\w@-]*)', header, re.M)
    _check_languages((None, language and language[1]), languages, path)
    if languages[1]:
        code = languages[1].replace("-", "_")
        header = re.sub(r'^("Language:)[ ]*(\\n")', rf"\1 {code}\2", header, flags=re.M)
    found = [re.sub('charset=(?!(?i:utf-8))[^\\\\"]*', "charset=UTF-8", header)]
    for entry, start, end in zip(entries, starts, [*starts[1:], len(text)], strict=False):
        # po4a says what a message is in a manual page or in POD, or of which element of XML.
        kind = re.search("^type: (?!Content of|Attribute)(.*)", entry.comment, re.M)
        is_code = kind is not None and kind[1] == "verbatim"

        def filled(
            target: re.Match[str], entry: Any = entry, read: Any = _coded if kind else tagged
        ) -> str:
            source = entry.msgid if target[2] in (None, "0") else entry.msgid_plural
            count, text = len(document.segments), with_marks(document, source, escape, read)
            if len(document.segments) > count and _NUMBERED.intersection(entry.flags):
                text = document.mark_part(text, partial(_with_numbers, source))
            return f'{target[1]}"{text}"'

        block, count = text[start:end], len(document.segments)
        if not (is_code or entry.msgstr or any(entry.msgstr_plural.values())):
            new = _TARGET.sub(filled, block)
            block = _as_fuzzy(new) if len(document.segments) > count else block
        found.append(block)
    document.text = "".join(found)
    return document


def _coded(text: str) -> Iterator[Piece]:
    """Yields the pieces of a text with codes such as `B<bold>`, as POD and po4a's manual pages.

    What is not emphasized text, but a command, a file or a link, stays as it is.
    """
    at = 0
    for code in [*_CODES.finditer(text), None]:
        yield from tagged(text[at : code.start() if code else None])
        if code:
            at, name, inner = code.end(), code[1], code[0][2:-1]
            is_argument = name == "I" and "<" not in inner and any(map(str.isalpha, inner))
            if is_argument or (name == "B" and " " in inner and _EMPHASIZED.fullmatch(inner)):
                yield Piece("begin", f"{name}<", name=name)
                yield Piece("text", inner, inner)
                yield Piece("end", ">", name=name)
            else:
                yield Piece("opaque", code[0])


def _with_numbers(source: str, translation: str) -> str:
    """Numbers the arguments of a translation that has them in another order, as in `%2$s`."""
    own, found = (
        [x for x in _DIRECTIVE.findall(y) if x[-1] not in "%m"] for y in (source, translation)
    )
    if own == found or sorted(own) != sorted(found):
        return translation
    count = itertools.count(1)

    def numbered(directive: str) -> str:
        widths = re.sub(r"\*", lambda _: f"*{next(count)}$", directive[1:])
        return f"%{next(count)}${widths}"

    arguments: dict[str, list[str]] = {}
    for x in own:
        arguments.setdefault(x, []).append(numbered(x))

    def written(directive: re.Match[str]) -> str:
        left = arguments.get(directive[0])
        return left.pop(0) if left else directive[0]

    return _DIRECTIVE.sub(written, translation)


def _as_fuzzy(block: str) -> str:
    """Returns an entry of a PO file with the flag `fuzzy`."""
    (head,) = re.findall(r"\A(?:[ \t]*#.*\n|\s*\n)*", block)
    if re.search(r"^#,.*\bfuzzy\b", head, re.M):
        return block
    flagged = re.sub("^#,", "#, fuzzy,", head, count=1, flags=re.M)
    line_end = "\r\n" if "\r\n" in block else "\n"
    return (flagged if flagged != head else f"{head}#, fuzzy{line_end}") + block[len(head) :]


# Inline elements that contain code of the document, and those that stand for a word of it.
_CODE = {"bpt", "ept", "it", "ph", "ut", "sub"}
_OPAQUE = {"ph", "x", "mrk"}
# States in which a target that equals its source is a copy, and no translation.
_NEW = {"new", "needs-translation", "initial"}
# Halves of an element, by the attribute of the second that names the first.
_FIRST, _SECOND = {"bpt", "bx", "sc"}, {"ept", "ex", "ec"}


def _xml_pieces(text: str, path: Path) -> list[Piece]:
    """Returns what XML contains. Each piece has the characters until the next begins.

    Ends have the attributes of their element. Opens no other file, and takes no entities of the
    file's own.
    """
    parser, content = expat.ParserCreate("utf-8"), text.encode()
    found, starts = [Piece("element", "")], [0]  # what is before the first element
    opened: list[dict[str, str]] = []

    def add(kind: Any, text: str = "", name: str = "", attributes: Any = None) -> None:
        starts.append(parser.CurrentByteIndex)
        found.append(Piece(kind, "", text, name.rpartition(":")[2], attributes or {}))

    def begin(name: str, attributes: dict[str, str]) -> None:
        opened.append(attributes)
        add("begin", "", name, attributes)

    def end(name: str) -> None:
        add("end", "", name, opened.pop())

    def refuse(*_: Any) -> None:
        rule = "an entity that XML does not define"
        raise CorpusError(f"{path}, line {parser.CurrentLineNumber:,}: {rule}")

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = lambda data: add("text", data)
    parser.StartCdataSectionHandler = lambda: add("text")
    parser.CommentHandler = lambda _: add("element")
    parser.ProcessingInstructionHandler = lambda *_: add("element")
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise CorpusError(f"{path}, line {error.lineno:,}: {reason}") from None
    raws = (content[x:y].decode() for x, y in itertools.pairwise((*starts, len(content))))
    return [piece._replace(raw=raw) for piece, raw in zip(found, raws, strict=True)]


def read_xliff(text: str, languages: Languages, path: Path) -> Document:
    """Finds the units of XLIFF 1.2 and 2 without a translation, which are marked to be checked.

    If a file has one language as source and target, its targets are the text to translate.
    """
    document, is_template = Document(saxutils.escape), False
    pieces = _xml_pieces(text, path)
    raws = [piece.raw for piece in pieces]
    # The open elements: number of the piece, whether its text is translated, and its children.
    stack: list[tuple[int, bool, dict[str, tuple[int, int]]]] = []
    for number, (kind, raw, _, name, attributes) in enumerate(pieces):
        if kind == "begin":
            is_open = attributes.get("translate") != "no" and (not stack or stack[-1][1])
            stack.append((number, is_open, {}))
            names = (
                ("source-language", "target-language") if name == "file" else ("srcLang", "trgLang")
            )
            if names[0] in attributes:
                of_file = attributes[names[0]], attributes.get(names[1])
                is_template = bool(languages[1]) and of_file[0] == of_file[1]
                _check_languages((of_file[0], None if is_template else of_file[1]), languages, path)
                if languages[1] and (is_template or not of_file[1]):
                    raws[number] = with_attribute(raw, names[1], languages[1])
        elif kind == "end":
            start, is_open, children = stack.pop()
            if stack:
                stack[-1][2].setdefault(name, (start, number))
            if name in ("trans-unit", "segment") and is_open and "source" in children:
                _add_target(document, pieces, raws, start, children, is_template)
    document.text = "".join(raws)
    return document


def _add_target(
    document: Document,
    pieces: list[Piece],
    raws: list[str],
    unit: int,
    children: dict[str, tuple[int, int]],
    is_template: bool,
) -> None:
    """Writes the target of a unit that has none, but text to translate, and its state."""
    start, end = children.get("seg-source") or children["source"]
    first, last = children.get("target") or (end, end)
    own, given = ("".join(raws[x + 1 : y]).strip() for x, y in ((start, end), (first, last)))
    is_new = any(pieces[x].attributes.get("state") in _NEW for x in (unit, first))
    if given and is_template:
        start, end = first, last
    elif given and not (is_new and given == own):
        return
    count = len(document.segments)
    body = marked(document, _unit_pieces(pieces[start + 1 : end]))
    if len(document.segments) == count:
        return
    (prefix,) = re.findall(r"\A<([^\s>]*:)?", raws[start])
    name, has_target = f"{prefix}target", first < last
    tag = re.sub(r"\s*/>$", ">", raws[first]) if has_target else f"<{name}>"
    if pieces[unit].name == "segment":
        raws[unit] = with_attribute(raws[unit], "state", "translated")
    else:
        tag = with_attribute(tag, "state", "needs-review-translation")
    if has_target:
        raws[first : last + 1] = [f"{tag}{body}</{name}>", *[""] * (last - first)]
    else:
        space = [*itertools.takewhile(str.isspace, reversed(raws[:start]))]
        raws[end] += "".join([*space[::-1], tag, body, f"</{name}>"])


def _unit_pieces(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yields the pieces of a source. Its text may have tags of HTML."""
    whole = whole_elements(pieces, _stays)
    for is_text, group in itertools.groupby(whole, lambda piece: piece.kind == "text"):
        if is_text:
            yield from tagged("".join(piece.text for piece in group), write=saxutils.escape)
        else:
            yield from map(_inline, group)


def _inline(piece: Piece) -> Piece:
    """Returns a tag or an element that stays as what it is in a segment."""
    name, attributes = piece.name, piece.attributes
    if piece.kind != "opaque":
        return piece._replace(kind="block") if attributes.get("mtype") == "seg" else piece
    if name in _FIRST | _SECOND:
        key = attributes.get("startRef") or attributes.get("rid") or attributes.get("id")
        return piece._replace(kind="begin" if name in _FIRST else "end", name=f"half {key}")
    return piece if name in _OPAQUE else piece._replace(kind="element")


def _stays(piece: Piece) -> bool:
    attributes = piece.attributes
    is_kept = attributes.get("translate") == "no" or attributes.get("mtype") == "protected"
    return piece.name in _CODE or is_kept or piece.raw.endswith("/>")
