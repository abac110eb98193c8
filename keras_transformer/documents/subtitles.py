"""Finds the text of lines and of subtitles. Numbers, times, settings and notes stay."""

import html
import re
from functools import partial
from pathlib import Path
from xml.sax import saxutils

import regex

from keras_transformer.documents.document import (
    BEGIN,
    BREAK,
    ITEM,
    Change,
    Document,
    Languages,
    Piece,
    in_lines,
    marked,
    tagged,
    with_marks,
)

_TIME = rf"[^\r\n]*-->[^\r\n]*{BREAK}"
_LINES = rf"(?:(?![ \t]*(?:[\r\n]|\Z))[^\r\n]+(?:{BREAK}|\Z))+"
# What is between two cues, and text of a cue without tags and dialogue.
_BETWEEN = rf"[ \t]*{BREAK}[ \t]*{BREAK}\s*(?:[^\r\n]+{BREAK})?{_TIME}"
_PLAIN = rf"(?![ \t]*{ITEM})[^\r\n<{{]+(?:{BREAK}(?!{BEGIN})[^\r\n<{{]+)*"
# A cue, or several of which each but the last ends within a sentence.
_CUES = regex.compile(
    rf"(?:^|(?<=[\r\n]))(?P<time>{_TIME})(?:(?P<sentence>{_PLAIN}"
    rf"(?:(?<=[\w,]){_BETWEEN}(?=\p{{Ll}}){_PLAIN})+(?=[ \t]*(?:{BREAK}[ \t]*(?:[\r\n]|\Z)|\Z)))"
    rf"|(?P<text>{_LINES}))"
)


def read_text(text: str, languages: Languages, path: Path) -> Document:
    """Takes each line as a segment."""
    lines = re.split("(\\r\\n|\\r|\\n)", text)
    document = Document()
    pieces = (Piece("block" if x.isspace() else "text", x, x) for x in lines)
    document.text = marked(document, pieces)
    return document


def read_srt(text: str, languages: Languages, path: Path) -> Document:
    """Finds the text of each cue, which keeps its number of lines."""
    return _read(Document(), text, str)


def read_vtt(text: str, languages: Languages, path: Path) -> Document:
    """Finds the text of each cue, which keeps its number of lines."""
    return _read(Document(saxutils.escape), text, html.unescape)


def _read(document: Document, text: str, unescape: Change) -> Document:
    def with_mark(cues: regex.Match[str]) -> str:
        if own := cues["text"]:
            return cues["time"] + with_marks(document, own, read=partial(tagged, read=unescape))
        raw, line_end = cues["sentence"], f"{_BETWEEN}|{BREAK}"
        piece = Piece("text", raw, unescape(re.sub(line_end, " ", raw)))
        return cues["time"] + marked(
            document, [piece], lambda x: in_lines(x, raw, line_end=line_end)
        )

    document.text = _CUES.sub(with_mark, text)
    return document
