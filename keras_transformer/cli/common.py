"""Contains the arguments, options, input, output and progress bar that several commands share."""

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import output_file
from keras_transformer.errors import UserError


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that rejects infinity and NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


# The value of `sys.stdout.name` after the command line has replaced a closed standard output.
CLOSED_STDOUT = os.devnull


class _RunFolder(click.Path):
    """A path that must not be empty, because `Path("")` is the current folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("a run folder must have a name", param, ctx)
        return super().convert(value, param, ctx)


run_folder = _RunFolder(path_type=Path)
existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)
run_argument = click.argument("run", metavar="RUN", type=run_folder)
file_argument = click.argument("file", type=existing_file, required=False)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting of the recipe, such as training.steps=500. Repeatable.",
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Output file. The file is written only if the command succeeds. Default: standard output.",
)
n_best_option = click.option(
    "--n-best",
    type=click.IntRange(min=1),
    default=1,
    help="Number of translations per sentence, at most the beam size.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["keras", "ctranslate2"]),
    default="keras",
    help="What translates. ctranslate2 is faster on CPUs and has fewer options. The first time, it "
    "converts the model of RUN.",
)
shortlist_option = click.option(
    "--shortlist",
    is_flag=True,
    help="Translate with the most frequent tokens and the most probable translations of each "
    "token of the sentence, which is faster. Learned from the training text of RUN the first time.",
)
scores_option = click.option(
    "--scores", is_flag=True, help="Write the score and a tab before each translation."
)


def count_lines(lines: Iterable[Any], *files: Path | None) -> int | None:
    """Returns the number of `lines` in `files`, or None if a file can be read only once.

    Reading the lines also validates them. A pipe and standard input can be read only once. In
    `files`, None means standard input.
    """
    if not all(file is not None and file.is_file() for file in files):
        return None
    return sum(1 for _ in lines)


def as_line(text: str) -> str:
    r"""Replaces "\r" and "\n" in a text by spaces, so that the text is a single line."""
    return text.replace("\n", " ").replace("\r", " ")


def standard_output() -> Callable[[str], Any]:
    """Returns a function that writes text to standard output.

    Raises:
        UserError: If standard output is closed.
    """
    if getattr(sys.stdout, "name", None) == CLOSED_STDOUT:
        raise UserError("standard output is closed")
    # Writes bytes, because `click.echo` would remove terminal escape sequences from text.
    return lambda text: click.echo(text.encode(), nl=False)


@contextmanager
def writer(output: Path | None) -> Iterator[Callable[[str], Any]]:
    """Yields a function that writes text to `output`, or to standard output if `output` is None.

    Raises:
        UserError: If the file cannot be written, or standard output is closed. The error is raised
            at the start of the `with` block.
    """
    if output is None:
        yield standard_output()
        return
    with output_file(output) as file:
        yield file.write


@contextmanager
def warning_lines() -> Iterator[None]:
    """Shows each warning on stderr without the file and line of the code that caused it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        yield


def progress_bar(desc: str, total: int | None, output: Path | None = None) -> Any:
    """Returns a progress bar for sentences on stderr. `desc` says what is being done.

    It is hidden if `total` is None, or if standard output is a terminal and `output` is None.
    """
    from keras_transformer._progress import Bar, compiling

    is_shown = total is not None and (output is not None or not sys.stdout.isatty())
    return Bar(desc, compiling(), total=total, unit="sentence", disable=not is_shown)
