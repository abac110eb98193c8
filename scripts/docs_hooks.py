"""Hooks of MkDocs: fill in the parts of the documentation that are generated from the code.

A line `<!-- generated: NAME -->` of a page is replaced by the text of the function NAME.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keras_transformer.cli import COMMANDS, main
from keras_transformer.models import PRESETS
from keras_transformer.recipe import Recipe, may_change
from keras_transformer.run import Run


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the placeholders of a page. MkDocs calls this function for each page."""
    return re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda match: GENERATED[match[1]](),
        markdown,
        flags=re.MULTILINE,
    )


def commands() -> str:
    """Returns a section for each command: usage, description, examples and options."""
    group = main.make_context("keras-transformer", ["train"], resilient_parsing=True)
    return "\n\n".join(_command(name, group) for name in COMMANDS)


def _command(name: str, group: click.Context) -> str:
    command = main.get_command(group, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=group, show_default=True)
    usage = " ".join(["keras-transformer", name, *command.collect_usage_pieces(context)])
    options = [x for x in command.get_params(context) if isinstance(x, click.Option)]
    rows = [record for x in options if (record := x.get_help_record(context))]
    return "\n\n".join(
        [
            f"## {name}",
            f"```text\n{usage}\n```",
            *_paragraphs(inspect.cleandoc(command.help or "")),
            _table(("option", "meaning"), ((f"`{flag}`", _escaped(text)) for flag, text in rows)),
        ]
    )


def _paragraphs(text: str) -> Iterator[str]:
    """Yields paragraphs as Markdown. Click shows paragraphs that begin with "\b" as they are."""
    for paragraph in text.split("\n\n"):
        example = paragraph.removeprefix("\b\n")
        if example != paragraph:
            yield f"```bash\n{example}\n```"
        else:
            yield _escaped(" ".join(paragraph.split()))


def recipe_keys() -> str:
    """Returns a table of keys for each section of a recipe."""
    return "\n\n".join(_sections(Recipe, ""))


def _sections(section: type[BaseModel], name: str) -> Iterator[str]:
    inner = {key: found for key, x in section.model_fields.items() if (found := _section_of(x))}
    heading = f"## `{name}`\n\n{inspect.getdoc(section)}" if name else "## Top level"
    rows = (
        (
            f"`{key}`",
            _type(field, key in inner),
            _default(field),
            _meaning(field, inner.get(key), f"{name}.{key}".lstrip(".")),
        )
        for key, field in section.model_fields.items()
    )
    yield f"{heading}\n\n{_table(('key', 'value', 'default', 'meaning'), rows)}"
    for key, found in inner.items():
        if not (name and found.__name__ == "TextPair" and key != "train"):
            yield from _sections(found, f"{name}.{key}".lstrip("."))


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
    return None


def _type(field: FieldInfo, is_section: bool) -> str:
    if is_section:
        return "section"
    if get_origin(field.annotation) is dict:
        return "mapping"
    parts = [x for x in get_args(field.annotation) or [field.annotation] if x is not type(None)]
    if get_origin(field.annotation) is Literal:
        parts = [field.annotation]
    words = (
        ", ".join(f"`{x}`" for x in get_args(part)) if get_args(part) else part.__name__.lower()
        for part in parts
    )
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}
    return " or ".join(names.get(word, word) for word in words) + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = {key: getattr(x, key) for x in field.metadata for key in signs if hasattr(x, key)}
    return "".join(f", {signs[key]} {bound:,}" for key, bound in found.items())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel) or field.default in (None, ""):
        return ""
    return f"`{str(field.default).lower() if field.default in (True, False) else field.default}`"


def _meaning(field: FieldInfo, section: type[BaseModel] | None, path: str) -> str:
    summary = inspect.getdoc(section).splitlines()[0] if section else ""
    text = _escaped(field.description or summary)
    return f"{text} *May change on resume.*" if may_change(path) else text


def presets() -> str:
    """Returns a table of the presets."""
    names = list(next(iter(PRESETS.values())))
    rows = ((f"`{name}`", *map(str, sizes.values())) for name, sizes in PRESETS.items())
    return _table(("preset", *(f"`{name}`" for name in names)), rows)


def run_folder() -> str:
    """Returns the list of files from the docstring of `Run`."""
    list_of_files = inspect.getdoc(Run).split("\n\n")[1]
    found = (re.fullmatch(r" +(\S+) +(\S.*)", line) for line in list_of_files.splitlines())
    rows = ((f"`{match[1]}`", _escaped(match[2])) for match in found)
    return _table(("file", "content"), rows)


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Escapes the characters of a text that mean something in Markdown."""
    return re.sub(r"([*|])", r"\\\1", text.replace("<", "&lt;"))


GENERATED = {x.__name__: x for x in (commands, recipe_keys, presets, run_folder)}
