"""What commands read and write: lines, files, the terminal and its progress bar."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import output_bytes, output_file
from keras_transformer._progress import Bar
from keras_transformer.data.text_files import read_lines, read_standard_input
from keras_transformer.errors import UserError


def is_session(file: Path | None) -> bool:
    """Returns whether a user types the sentences: there is no file, and stdin is a terminal."""
    return file is None and sys.stdin.isatty()


def input_lines(file: Path | None, language: str = "") -> Iterator[str]:
    """Yields the lines of a file, of standard input, or those that a user types in a language."""
    if is_session(file):
        return _prompted_lines(language)
    return read_lines(file) if file else read_standard_input()


def _prompted_lines(language: str) -> Iterator[str]:
    """Yields the lines that a user types. The prompt is on stderr if stdout is not a terminal."""
    with suppress(ImportError):  # Windows has no readline.
        import readline  # noqa: F401  # gives `input` its history
    known = f" ({language})" if language else ""
    hint = f"Type one sentence at a time, in the source language{known}. Ctrl-D ends."
    click.echo(hint, err=True)
    has_terminal = sys.stdout.isatty()
    while True:
        if not has_terminal:
            click.echo("> ", err=True, nl=False)
        try:
            line = input("> " if has_terminal else "")
            line.encode()
        except EOFError:
            click.echo(err=True)
            return
        except UnicodeError as error:
            raise UserError(f"standard input: text must be UTF-8. Received: {error}") from None
        yield line


@contextmanager
def writer(output: Path | None) -> Iterator[Callable[[str], Any]]:
    """Yields a function that writes text to `output`, or to standard output if it is None."""
    if output is None:
        # Writes bytes, because `click.echo` would remove terminal escape sequences from text.
        yield lambda text: click.echo(text.encode(), nl=False)
        return
    with output_file(output) as file:
        yield file.write


@contextmanager
def bytes_writer(output: Path | None) -> Iterator[Callable[[bytes], Any]]:
    """Yields a function that writes the content of `output`, or of standard output."""
    if output is None:
        yield lambda content: click.echo(content, nl=False)
        return
    with output_bytes(output) as file:
        yield file.write


def printable(value: object) -> Any:
    """Replaces characters of a string that may control a terminal by spaces."""
    if not isinstance(value, str):
        return value
    return "".join(x if x.isprintable() else " " for x in value)


def render(template: str, **values: Any) -> str:
    """Returns the text of a template, with `printable` values."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), finalize=printable)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template(template).render(values)


@contextmanager
def warning_lines() -> Iterator[None]:
    """Shows each warning once on stderr, without the file and line of the code that caused it."""
    # Python would show a warning again after an import that sets filters.
    show_once = functools.cache(lambda text: click.echo(f"Warning: {printable(text)}", err=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a softmax")  # over one token
        warnings.showwarning = lambda message, *_, **__: show_once(str(message))
        yield


def progress_bar(
    desc: str, total: int | None, waiting: str = "", output: Path | None = None, done: int = 0
) -> Any:
    """Returns a progress bar for sentences on stderr. For `desc` and `waiting`, see `Bar`.

    It begins with the number of sentences `done` before.
    It is hidden if `total` is None, or if standard output is a terminal and `output` is None.
    """
    is_shown = total is not None and (output is not None or not sys.stdout.isatty())
    settings = {"total": total, "initial": done, "unit": "sentence", "disable": not is_shown}
    return Bar(desc, waiting, **settings)
