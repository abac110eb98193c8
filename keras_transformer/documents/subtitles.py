"""Finds the text of lines and of subtitles. Numbers, times, settings and notes stay."""

import html
import re
from pathlib import Path

from keras_transformer.documents.document import (
    Change,
    Document,
    Languages,
    Piece,
    marked,
    with_marks,
)

_CUE = re.compile(
    r"(?:^|(?<=[\r\n]))(?P<time>[^\r\n]*-->[^\r\n]*(?:\r\n|\r|\n))"
    r"(?P<text>(?:(?![ \t]*(?:[\r\n]|\Z))[^\r\n]+(?:\r\n|\r|\n|\Z))+)"
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
    return _read(Document(lambda x: html.escape(x, quote=False)), text, html.unescape)


def _read(document: Document, text: str, unescape: Change) -> Document:
    document.text = _CUE.sub(
        lambda x: x["time"] + with_marks(document, x["text"], unescape=unescape), text
    )
    return document
