"""Finds the messages of PO files and the units of XLIFF files that have no translation yet."""

import html
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from keras_transformer.data.languages import closest_language
from keras_transformer.data.parallel_text import po_entries
from keras_transformer.data.text_files import CorpusError
from keras_transformer.documents.document import (
    Document,
    Languages,
    SegmentBuilder,
    with_attribute,
    with_marks,
)

_STRING = r'"(?:[^"\\]|\\.)*"'
_TARGET = re.compile(rf"^([ \t]*msgstr(?:\[(\d+)\])?[ \t]+){_STRING}(?:\s+{_STRING})*", re.M)
_SOURCE = re.compile(r"^[ \t]*msg(?:ctxt|id)\b", re.M)
_FLAGS = re.compile(r"^#,", re.M)


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
    starts = [lines[entry.linenum - 1] for entry in entries]
    header = text[: min(starts, default=len(text))]
    language = re.search(r'^"Language:[ ]*([\w@-]*)', header, re.M)
    _check_languages((None, language and language[1]), languages, path)
    if languages[1]:
        code = languages[1].replace("-", "_")
        header = re.sub(r'^("Language:)[ ]*(\\n")', rf"\1 {code}\2", header, flags=re.M)
    found = [header.replace("charset=CHARSET", "charset=UTF-8")]
    for entry, start, end in zip(entries, starts, [*starts[1:], len(text)], strict=False):

        def filled(target: re.Match[str], entry: Any = entry) -> str:
            source = entry.msgid if target[2] in (None, "0") else entry.msgid_plural
            return f'{target[1]}"{with_marks(document, source, escape)}"'

        block, count = text[start:end], len(document.segments)
        if not (entry.msgstr or any(entry.msgstr_plural.values())):
            new = _TARGET.sub(filled, block)
            block = _as_fuzzy(new) if len(document.segments) > count else block
        found.append(block)
    document.text = "".join(found)
    return document


def _as_fuzzy(block: str) -> str:
    """Returns an entry of a PO file with the flag `fuzzy`."""
    comments = re.match(r"(?:[ \t]*#.*\n|\s*\n)*", block)
    head = comments[0] if comments else ""
    flagged = re.sub("^#,", "#, fuzzy,", head, count=1, flags=re.M)
    line_end = "\r\n" if "\r\n" in block else "\n"
    return (flagged if flagged != head else f"{head}#, fuzzy{line_end}") + block[len(head) :]


# Inline elements that contain code of the document, and those that stand for a word of it.
_CODE = {"bpt", "ept", "it", "ph", "ut", "sub"}
_OPAQUE = {"ph", "x"}
# Halves of an element, by the attribute of the second that names the first.
_FIRST, _SECOND = {"bpt", "bx", "sc"}, {"ept", "ex", "ec"}


class _Event(NamedTuple):
    """A tag, text or comment of XML, and its characters."""

    kind: str
    name: str  # without the prefix of its namespace
    attributes: dict[str, str]
    raw: str


def _events(text: str, path: Path) -> list[_Event]:
    """Returns what XML contains. Each event has the characters until the next begins.

    Opens no other file, and takes no entities of the file's own.
    """
    parser, content = expat.ParserCreate("utf-8"), text.encode()
    found: list[tuple[int, str, str, dict[str, str]]] = [(0, "comment", "", {})]  # what is before

    def add(kind: str) -> Callable[..., None]:
        def handle(name: str = "", attributes: Any = None, *_: Any) -> None:
            local = name.rpartition(":")[2] if kind in ("start", "end") else ""
            found.append((parser.CurrentByteIndex, kind, local, attributes or {}))

        return handle

    def refuse(*_: Any) -> None:
        rule = "an entity that XML does not define"
        raise CorpusError(f"{path}, line {parser.CurrentLineNumber:,}: {rule}")

    parser.StartElementHandler, parser.EndElementHandler = add("start"), add("end")
    parser.CharacterDataHandler = add("text")
    parser.StartCdataSectionHandler = add("cdata")
    parser.EndCdataSectionHandler = add("comment")
    parser.CommentHandler = parser.ProcessingInstructionHandler = add("comment")
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise CorpusError(f"{path}, line {error.lineno:,}: {reason}") from None
    ends = [*(start for start, *_ in found[1:]), len(content)]
    return [
        _Event(kind, name, attributes, content[start:end].decode())
        for (start, kind, name, attributes), end in zip(found, ends, strict=True)
    ]


def read_xliff(text: str, languages: Languages, path: Path) -> Document:
    """Finds the units of XLIFF 1.2 and 2 without a translation, which are marked to be checked."""
    document = Document(_escape, errors="xmlcharrefreplace")
    events = _events(text, path)
    raws, version = [event.raw for event in events], ""
    # The open elements: number of the event, whether its text is translated, and its children.
    stack: list[tuple[int, bool, dict[str, tuple[int, int]]]] = []
    for number, event in enumerate(events):
        kind, name, attributes, raw = event
        if kind == "start":
            version = version or attributes.get("version", "")
            is_open = attributes.get("translate") != "no" and (not stack or stack[-1][1])
            stack.append((number, is_open, {}))
            names = (
                ("source-language", "target-language") if name == "file" else ("srcLang", "trgLang")
            )
            if names[0] in attributes:
                of_file = attributes[names[0]], attributes.get(names[1])
                _check_languages(of_file, languages, path)
                if languages[1] and names[1] not in attributes:
                    raws[number] = with_attribute(raw, names[1], languages[1])
        elif kind == "end":
            start, is_open, children = stack.pop()
            if stack:
                stack[-1][2].setdefault(name, (start, number))
            if name in ("trans-unit", "segment") and is_open and "source" in children:
                body = _target(document, events, raws, children, version)
                if body and not version.startswith("1"):
                    raws[start] = with_attribute(raws[start], "state", "translated")
    document.text = "".join(raws)
    return document


def _target(
    document: Document,
    events: list[_Event],
    raws: list[str],
    children: dict[str, tuple[int, int]],
    version: str,
) -> bool:
    """Writes the target of a unit, and returns whether there was none, but text to translate."""
    start, end = children.get("seg-source") or children["source"]
    first, last = children.get("target") or (end, end)
    if "".join(raws[first + 1 : last]).strip():
        return False
    count = len(document.segments)
    body = _unit_text(document, events[start + 1 : end])
    if len(document.segments) == count:
        return False
    prefix = re.match(r"<([^\s>]*:)?", raws[start])
    name = f"{prefix[1] or ''}target" if prefix else "target"
    has_target = first < last
    tag = re.sub(r"\s*/>$", ">", raws[first]) if has_target else f"<{name}>"
    if version.startswith("1"):
        tag = with_attribute(tag, "state", "needs-review-translation")
    if has_target:
        raws[first : last + 1] = [f"{tag}{body}</{name}>", *[""] * (last - first)]
    else:
        space = [*itertools.takewhile(str.isspace, reversed(raws[:start]))]
        raws[end] += "".join([*space[::-1], tag, body, f"</{name}>"])
    return True


def _unit_text(document: Document, events: list[_Event]) -> str:
    """Returns the content of a source with marks for its segments."""
    builder, found, text = SegmentBuilder(document), list[str](), ""
    stack: list[bool] = []  # For each open element, whether it is a segment.
    code, code_event, depth, is_cdata = "", events[:1], 0, False
    for event in [*events, _Event("comment", "", {}, "")]:
        kind, name, attributes, raw = event
        if depth:
            code += raw
            depth += (kind == "start") - (kind == "end")
            if not depth:
                _add_code(builder, code_event[0], code)
            continue
        if kind == "text":
            text += raw if is_cdata else html.unescape(raw)
            continue
        if kind == "cdata" or (is_cdata and kind == "comment"):
            is_cdata = kind == "cdata"
            continue
        builder.add_tagged(text, write=_escape)
        text, is_segment = "", name == "mrk" and attributes.get("mtype") == "seg"
        stays = attributes.get("translate") == "no" or attributes.get("mtype") == "protected"
        if kind == "comment":
            builder.add_element(raw)
        elif kind == "start" and (name in _CODE or stays or raw.endswith("/>")):
            code, code_event, depth = raw, [event], 1
        elif kind == "start":
            stack.append(is_segment)
            if is_segment:
                found += [builder.build(), raw]
            else:
                builder.open(len(stack), raw)
        elif stack.pop():
            found += [builder.build(), raw]
        else:
            builder.close(len(stack) + 1, raw)
    return "".join([*found, builder.build()])


def _add_code(builder: SegmentBuilder, event: _Event, code: str) -> None:
    """Adds an inline element that has no text to translate."""
    _, name, attributes, _ = event
    key = ("half", attributes.get("startRef") or attributes.get("rid") or attributes.get("id"))
    if name in _FIRST:
        builder.open(key, code)
    elif name in _SECOND:
        builder.close(key, code)
    elif name in _OPAQUE or name == "mrk":
        builder.add_opaque(code)
    else:
        builder.add_element(code)


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
