"""Finds the messages of JSON and YAML files: strings that are values."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from keras_transformer.data.text_files import CorpusError
from keras_transformer.documents.document import Document, Languages, with_marks

# A key or a string, or what begins or ends an object or a list.
_JSON = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]')
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # U+0000 and halves of characters
# What separates the lines of a message, also a block of code.
_LINE_END = re.compile(r"((?:\n|\A(?=```))(?:```.*?\n```(?=\n|\Z)\n?)?)", re.DOTALL)


def read_json(text: str, languages: Languages, path: Path) -> Document:
    """Finds the lines of strings that are values. What a key such as @title of ARB has stays."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: JSON must be well-formed. Received: {error}") from None
    document, key, stays = Document(), "", [False]

    def translated(token: re.Match[str]) -> str:
        nonlocal key
        string, colon = token.groups()
        if colon:
            key = string
        elif not string:
            if token[0] in "{[":
                stays.append(stays[-1] or key.startswith('"@'))
            else:
                stays.pop()
            key = ""
        elif not (stays[-1] or key.startswith('"@')):
            return _quoted(document, string, json.loads(string))
        return token[0]

    document.text = _JSON.sub(translated, text)
    return document


def read_yaml(text: str, languages: Languages, path: Path) -> Document:
    """Finds strings that are values. If all are under the code of a language, this changes, too.

    A string without quotes gets them, because its translation may need them.
    """
    try:
        roots = list(yaml.compose_all(text, yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise CorpusError(f"{path}: YAML must be well-formed. Received: {error}") from None
    document, found, at = Document(), "", 0
    for node in sorted(_values(roots, languages[0]), key=lambda x: x.start_mark.index):
        start, end = node.start_mark.index, node.end_mark.index
        raw = re.sub(r"^(?:[&!]\S*\s+)*", "", text[start:end])  # without anchor and tag
        is_language = node.value == languages[0] and start == roots[0].start_mark.index
        found += text[at : end - len(raw)]
        found += languages[1] or raw if is_language else _scalar(document, node, raw)
        at = end
    document.text = found + text[at:]
    return document


def _scalar(document: Document, node: Any, raw: str) -> str:
    """Returns a string in the style in which YAML has it, with marks for its text."""
    head, line_end, body = raw.partition("\n")
    if node.style == "|":  # Its lines are indented, so each is a paragraph.
        return head + line_end + with_marks(document, body)
    if node.style == ">" and body.strip():
        head, body, tail = raw.rpartition(body.strip())
        indent = "\n" + head.rpartition("\n")[2]
        lines = body.replace(indent, "\n")
        found = with_marks(document, lines, lambda x: x.replace("\n", indent))
        return head + re.sub(r"(?<=\n) +(?=\n)", "", found) + tail
    if node.style == "'" and "\n" not in node.value:
        return "'" + with_marks(document, node.value, lambda x: x.replace("'", "''")) + "'"
    return _quoted(document, raw, node.value)


def _values(nodes: Any, language: str | None) -> Iterator[Any]:
    """Yields the strings that are values, each once, and a key that is the code of the language."""
    open_nodes, seen = list(nodes), set()
    while open_nodes:
        node = open_nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith(":str"):
                yield node
        elif isinstance(node, yaml.MappingNode):
            open_nodes += [value for _, value in node.value]
            if node in nodes and len(node.value) == 1 and node.value[0][0].value == language:
                yield node.value[0][0]
        elif node:
            open_nodes += node.value


def _quoted(document: Document, raw: str, value: str) -> str:
    """Returns a string with quotes and marks for its lines, or as it is if it has no text."""
    if not any(map(str.isalpha, value)) or _NO_TEXT.search(value):
        return raw
    parts = _LINE_END.split(value)
    parts[::2] = [with_marks(document, line, _escaped) for line in parts[::2]]
    parts[1::2] = map(_escaped, parts[1::2])
    return f'"{"".join(parts)}"'


def _escaped(value: str) -> str:
    """Escapes text as JSON and YAML do, but leaves the marks of segments."""
    return "\0".join(json.dumps(x, ensure_ascii=False)[1:-1] for x in value.split("\0"))
