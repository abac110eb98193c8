"""Finds the text of Markdown. Only the text of paragraphs, headings and cells is rewritten."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.text_files import extra
from keras_transformer.documents.document import TAG, Document, Languages, SegmentBuilder
from keras_transformer.documents.html import OPAQUE
from keras_transformer.translation.markup import Segment

_BREAK = r"(?:\r\n?|\n)"
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?\n)?(---|\.\.\.)[ \t]*(\r?\n|\Z)", re.DOTALL)
# What other programs than CommonMark read: directives, footnotes, attributes and open tasks.
_DIRECTIVE = re.compile(r"!!!|\?\?\?|:::")
_EXTENSION = r"\[\^[^\]\s]+\]:?|\{[:#.][^{}]*\}|^\[[ xX]\] "
_SPECIAL = re.compile(
    r"\\(?=[!-/:-@[-`{-~])|[`\[]|\*(?!\s)|(?<!\s)\*|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|&(?=#?\w+;)|~~"
)
# A number before the mark of a list, or the beginning of another block.
_BLOCK = r"\d{1,9}(?=[.)](?:\s|\Z))|(?=(?:[-+>]|#{1,6})(?:\s|\Z)|---|===|~~~)"
_ADDRESS = r"(?:<[^<>\n]*>|(?:\\.|[^\s()\\]|\((?:\\.|[^\s()\\]|\([^\s()\\]*\))*\))*)"
_TITLE = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\))"""
_LINK_END = rf"\]\(\s*{_ADDRESS}(?:\s+{_TITLE})?\s*\)|\]\[[^\[\]]*\]|\]"


def escape(text: str) -> str:
    """Writes text as Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def read_markdown(text: str, languages: Languages, path: Path) -> Document:
    """Finds the text of a page of Markdown."""
    parser = extra("markdown_it", "Markdown").MarkdownIt("commonmark", {"html": True})
    parser.enable(["table", "strikethrough"]).disable("text_join")
    front = _FRONT_MATTER.match(text)
    head = text[: front.end()] if front else ""
    starts = [0, *(x.end() for x in re.finditer(_BREAK, text))]
    tokens = parser.parse("\n" * len(re.findall(_BREAK, head)) + text[len(head) :])
    document, found, at = Document(escape), list[str](), 0
    for before, token in itertools.pairwise(tokens):
        if token.type != "inline" or _DIRECTIVE.match(token.content):
            continue
        lines = text[max(at, starts[token.map[0]]) : [*starts, len(text)][token.map[1]]]
        is_cell = before.type in ("th_open", "td_open")
        block = re.search((_cell if is_cell else _block)(token.content), lines)
        if block is None:
            continue
        count = len(document.segments)
        inline = _Inline(document, token.content, block.groups()[1:], is_cell).read(token.children)
        if inline is not None and len(document.segments) > count:
            start, end = (max(at, starts[token.map[0]]) + x for x in block.span(1))
            found += [text[at:start], inline]
            at = end
    document.text = "".join([*found, text[at:]])
    return document


def _block(content: str) -> str:
    """Returns a pattern for the lines of a block. The groups are the block and its line breaks."""
    parts = (re.escape(x.strip()) for x in content.split("\n"))
    text = rf"([ \t]*(?:{_BREAK})[^\r\n]*?)".join(parts)
    return rf"({text})(?=[ \t#]*(?:[\r\n]|\Z))"


def _cell(content: str) -> str:
    text = re.escape(content).replace(r"\|", r"\\?\|")  # The content lacks the backslash.
    return rf"(?:^|\|)[ \t>]*({text})(?=[ \t]*(?:[|\r\n]|\Z))"


class _Inline:
    """The inline text of a block, in which the tokens of the parser are found in their order."""

    def __init__(
        self, document: Document, content: str, breaks: Sequence[str], is_cell: bool
    ) -> None:
        self.document, self.content, self.breaks = document, content, iter(breaks)
        self.write = _with_bars if is_cell else _as_paragraph
        self.builder = SegmentBuilder(document)
        self.found: list[str] = []
        # What ends an element whose text stays, and its characters.
        self.end, self.kept = "", ""

    def read(self, tokens: list[Any]) -> str | None:
        """Returns the text of the block with marks, or None if a token is not found in it."""
        at = 0
        for token in tokens:
            raw = self._raw(token, at)
            if raw is None or not self.content.startswith(raw, at):
                return None
            at += len(raw)
            self._add(token, raw)
        self._end_segment()
        return "".join(self.found) if at == len(self.content) else None

    def _raw(self, token: Any, at: int) -> str | None:
        """Returns the characters of a token, which begin at a place of the content."""
        if token.markup == "autolink":  # `<URL>` is one token here, and nothing follows.
            pattern = r"<[^<>]*>" if token.type == "link_open" else ""
        elif self.end == "autolink":
            pattern = ""
        elif token.type in ("text", "html_inline"):
            return token.content
        elif token.type in ("softbreak", "hardbreak"):
            pattern = r"\\?[ \t]*\n[ \t]*"
        elif token.type == "code_inline":
            pattern = rf"{token.markup}(?!`).*?(?<!`){token.markup}(?!`)"
        elif token.type == "image":
            pattern = rf"!\[{re.escape(token.content)}(?:{_LINK_END})"
        elif token.type.startswith("link_"):
            pattern = r"\[" if token.type == "link_open" else _LINK_END
        else:
            return token.markup
        found = re.compile(pattern, re.DOTALL).match(self.content, at)
        return found[0] if found else None

    def _add(self, token: Any, raw: str) -> None:
        builder, kind = self.builder, token.type.rpartition("_")[0]
        if self.end:
            self.kept += raw
            if self.end in (token.content, token.markup):
                builder.add_opaque(self.kept)
                self.end = ""
        elif token.markup == "autolink":
            self.end, self.kept = "autolink", raw
        elif token.type in ("softbreak", "hardbreak"):
            line_break = raw[: raw.startswith("\\")] + next(self.breaks)
            if token.type == "softbreak":
                return builder.add_text(" ", line_break)
            self._end_segment()
            self.found.append(line_break)
        elif token.type == "code_inline":
            builder.add_opaque(raw.replace("\n", " "))
        elif token.type == "image":
            text = token.content
            mark = text if escape(text) != text else self.document.mark(Segment(text), self.write)
            builder.add_element(f"![{mark}{raw[2 + len(text) :]}")
        elif token.type == "html_inline":
            tag = TAG.fullmatch(raw)
            if tag and tag["name"] in OPAQUE and not tag["end"]:
                self.end, self.kept = f"</{tag['name']}>", raw
            else:
                builder.add_tagged(raw) if tag else builder.add_element(raw)
        elif token.type == "text":
            for text in re.split(f"({_EXTENSION})", raw):
                add = builder.add_element if re.fullmatch(_EXTENSION, text) else builder.add_text
                add(text)
        elif token.type == "text_special":
            builder.add_text(token.content, raw)
        else:
            (builder.open if token.nesting == 1 else builder.close)(kind, raw.replace("\n", " "))
        return None

    def _end_segment(self) -> None:
        part = self.builder.build(self.write)
        self.found.append(part if self.write is _as_paragraph else self.write(part))


def _with_bars(text: str) -> str:
    return text.replace("|", r"\|")


def _as_paragraph(text: str) -> str:
    """Returns a text whose first characters do not begin a list, a heading or another block."""
    at = found.end() if (found := re.match(_BLOCK, text)) else None
    return text if at is None else f"{text[:at]}\\{text[at:]}"
