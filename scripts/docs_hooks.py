"""Hooks of MkDocs: fill in the parts of the documentation that are generated from the code.

A line `<!-- generated: NAME -->` of a page is replaced by the text of the function NAME.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from pydantic import BaseModel

from keras_transformer.cli import COMMANDS, main
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.sections import TextPair
from keras_transformer.recipe.settings import Key, Recipe, all_keys
from keras_transformer.runs.run import Run


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
    keys = [key for key in all_keys() if key.name.rpartition(".")[0] == name]
    heading = f"## `{name}`\n\n{inspect.getdoc(section)}" if name else "## Top level"
    rows = ((f"`{_last(key)}`", _escaped(key.value), key.default, _meaning(key)) for key in keys)
    yield f"{heading}\n\n{_table(('key', 'value', 'default', 'meaning'), rows)}"
    for key in keys:
        # The section of training text has all keys of the sections of the other splits.
        if key.section and key.section is not TextPair:
            yield from _sections(key.section, key.name)


def _meaning(key: Key) -> str:
    return _escaped(key.meaning) + " *May change on resume.*" * key.may_change


def _last(key: Key) -> str:
    return key.name.rpartition(".")[2]


def presets() -> str:
    """Returns a table of the presets of each architecture."""
    return "\n\n".join(
        f"### `{name}`\n\n{_presets(each.presets)}" for name, each in ARCHITECTURES.items()
    )


def _presets(presets: dict[str, dict[str, Any]]) -> str:
    names = list(next(iter(presets.values())))
    rows = ((f"`{name}`", *map(str, sizes.values())) for name, sizes in presets.items())
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
