"""Finds the text of Markdown. Only the text of paragraphs, headings and cells is rewritten."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.text_files import extra
from keras_transformer.documents.document import (
    BREAK,
    TAG,
    Change,
    Document,
    Languages,
    Piece,
    marked,
    separated,
    tagged,
    whole_elements,
)
from keras_transformer.documents.html import OPAQUE
from keras_transformer.translation.markup import Segment

_FRONT_MATTER = re.compile(r"(\+{3}|---)[ \t]*\r?\n(.*?\n)?(\1|\.\.\.)[ \t]*(\r?\n|\Z)", re.DOTALL)
# What other programs than CommonMark read: directives; footnotes, attributes, open tasks, names of
# emoji, and the kind of an alert.
_DIRECTIVE = re.compile(r'[:/]{3}|=== "|-+8<')
_ALERT = r"^\[![A-Z]+\]$"
_EXTENSION = (
    rf"\[\^[^\]\s]+\]:?|\{{[:#.][^{{}}]*\}}|^\[[ xX]\] |(?<!\w):[a-z][\w+-]*:(?!\w)|{_ALERT}"
)
_SPECIAL = re.compile(
    r"\\(?=[!-/:-@[-`{-~])|[`\[]|\*(?!\s)|(?<!\s)\*|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)|~~"
)
# A number before the mark of a list, or the beginning of another block.
_BLOCK = r"\d{1,9}(?=[.)](?:\s|\Z))|(?=>|(?:[-+]|#{1,6})(?:\s|\Z)|---|===|~~~)"
_ADDRESS = r"(?:<[^<>\n]*>|(?:\\.|[^\s()\\]|\((?:\\.|[^\s()\\]|\([^\s()\\]*\))*\))*)"
_TITLE = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\))"""
_LINE_END = r"\\?[ \t]*\n[ \t]*"
_LINK_END = rf"\]\(\s*{_ADDRESS}(?:\s+{_TITLE})?\s*\)|\]\[[^\[\]]*\]|\]"


def escape(text: str) -> str:
    """Writes text as Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def read_markdown(text: str, languages: Languages, path: Path) -> Document:
    """Finds the text of a page of Markdown."""
    utils = extra("markdown_it.common.utils", "Markdown")
    parser = extra("markdown_it", "Markdown").MarkdownIt("commonmark", {"html": True})
    parser.enable(["table", "strikethrough"]).disable("text_join")
    parser.use(extra("mdit_py_plugins.admon", "Markdown").admon_plugin)
    parser.use(extra("mdit_py_plugins.deflist", "Markdown").deflist_plugin)
    formulas = extra("mdit_py_plugins.dollarmath", "Markdown").dollarmath_plugin
    parser.use(formulas, allow_space=False, allow_digits=False)  # An amount such as $5 is none.
    front = _FRONT_MATTER.match(text)
    head = text[: front.end()] if front else ""
    starts = [0, *(x.end() for x in re.finditer(BREAK, text))]
    # Other programs than CommonMark know labels that the page does not define.
    labels = map(utils.normalizeReference, re.findall(r"\]\[([^\[\]]+)\]", text))
    known = {"references": {label: {"href": "", "title": ""} for label in labels}}
    tokens = parser.parse("\n" * len(re.findall(BREAK, head)) + text[len(head) :], known)
    document, found, at = Document(escape), list[str](), 0
    for before, token in itertools.pairwise(tokens):
        if token.type != "inline" or _DIRECTIVE.match(token.content):
            continue
        start = max(at, starts[token.map[0]])
        is_cell = before.type in ("th_open", "td_open")
        pattern = (_cell if is_cell else _block)(token.content)
        if before.type == "admonition_title_open":
            pattern = f'"({re.escape(token.content)})"'  # not the name of the kind
        last = max(token.map[1], token.map[0] + 1)
        block = re.search(pattern, text[start : [*starts, len(text)][last]])
        children = _without_parts_of_addresses(token.children)
        raws = _raws(children, token.content)
        if block is None or raws is None:
            continue
        count, write = len(document.segments), _with_bars if is_cell else _as_paragraph
        pieces = _pieces(document, zip(children, raws, strict=True), block, write)
        inline = marked(document, whole_elements(pieces, lambda x: x.name in OPAQUE), write)
        if len(document.segments) > count:
            found += [text[at : start + block.start(1)], _with_bars(inline) if is_cell else inline]
            at = start + block.end(1)
    document.text = "".join([*found, text[at:]])
    return document


def _block(content: str) -> str:
    """Returns a pattern for the lines of a block. The groups are the block and its line breaks."""
    parts = (re.escape(x.strip()) for x in content.split("\n"))
    text = rf"([ \t]*{BREAK}[^\r\n]*?)".join(parts)
    return rf"({text})(?=[ \t#]*(?:[\r\n]|\Z))"


def _cell(content: str) -> str:
    text = re.escape(content).replace(r"\|", r"\\?\|")  # The content lacks the backslash.
    return rf"(?:^|\|)[ \t>]*({text})(?=[ \t]*(?:[|\r\n]|\Z))"


def _without_parts_of_addresses(tokens: Sequence[Any]) -> list[Any]:
    """Leaves one of the three tokens of an address such as `<http://example.org>`."""
    starts = {n for n, x in enumerate(tokens) if x.markup == "autolink" and x.nesting == 1}
    return [token for n, token in enumerate(tokens) if starts.isdisjoint((n - 1, n - 2))]


def _raws(tokens: Sequence[Any], content: str) -> list[str] | None:
    """Returns the characters of each token of a block, or None if one is not in its place."""
    found, at = list[str](), 0
    for token in tokens:
        if pattern := _pattern(token):
            match = re.compile(pattern, re.DOTALL).match(content, at)
            raw = match and match[0]
        else:
            raw = token.content if token.type in ("text", "html_inline") else token.markup
        if raw is None or not content.startswith(raw, at):
            return None
        found.append(raw)
        at += len(raw)
    return found if at == len(content) else None


def _pattern(token: Any) -> str | None:
    """Returns a pattern for the characters of a token, or None if it has them."""
    if token.markup == "autolink":
        return "<[^<>]*>"
    patterns = {
        "softbreak": _LINE_END,
        "hardbreak": _LINE_END,
        "code_inline": rf"{token.markup}(?!`).*?(?<!`){token.markup}(?!`)",
        "math_inline": rf"\${re.escape(token.content)}\$",
        "image": rf"!\[{re.escape(token.content)}(?:{_LINK_END})",
        "link_open": r"\[",
        "link_close": _LINK_END,
    }
    return patterns.get(token.type)


def _pieces(
    document: Document, tokens: Iterable[tuple[Any, str]], block: re.Match[str], write: Change
) -> Iterator[Piece]:
    """Yields the pieces of tokens, each with its characters. The block has the line breaks."""
    breaks, last, label = iter(block.groups()[1:]), "", ""
    for token, raw in tokens:
        kind: Any = "begin" if token.nesting == 1 else "end"
        if token.type in ("code_inline", "math_inline") or token.markup == "autolink":
            yield Piece("opaque", raw.replace("\n", " "))
        elif token.type == "softbreak":
            yield Piece("block" if re.match(_ALERT, last) else "text", next(breaks), " ")
        elif token.type == "hardbreak":
            yield Piece("block", raw[: raw.startswith("\\")] + next(breaks))
        elif token.type == "image":
            text = token.content
            mark, end = text, raw[2 + len(text) :]
            if escape(text) == text:
                mark, end = document.mark(Segment(text), write), _with_label(end, text)
            yield Piece("element", f"![{mark}{end}")
        elif token.type == "html_inline":
            yield from tagged(raw) if TAG.fullmatch(raw) else [Piece("element", raw)]
        elif token.type == "text":
            for text in re.split(f"({_EXTENSION})", raw):
                is_text = not re.fullmatch(_EXTENSION, text)
                yield from separated(text) if is_text else [Piece("element", text)]
        elif token.type == "text_special":
            yield Piece("text", raw, token.content)
        else:
            written = raw.replace("\n", " ")
            if token.type == "link_close":
                written = _with_label(written, label)
            yield Piece(kind, written, name=token.tag)
        label = "" if token.type == "link_open" else label + raw
        last = raw


def _with_label(end: str, label: str) -> str:
    """Returns the end of a link, which names its label if the label is its text."""
    is_code = re.fullmatch("(`+)((?!\\1).)+\\1", label)  # and stays
    return f"][{label}]" if end in ("]", "][]") and not is_code else end


def _with_bars(text: str) -> str:
    return text.replace("|", r"\|")


def _as_paragraph(text: str) -> str:
    """Returns a text whose first characters do not begin a list, a heading or another block."""
    at = found.end() if (found := re.match(_BLOCK, text)) else None
    return text if at is None else f"{text[:at]}\\{text[at:]}"
