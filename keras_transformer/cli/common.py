"""Contains the arguments, options, input, output and progress bar that several commands share."""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import output_file
from keras_transformer.errors import UserError
from keras_transformer_cli import BACKENDS


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    """Returns the recipes and files that begin with `incomplete`, for the shell."""
    from keras_transformer.recipe.files import recipe_files

    return _files_and_names(incomplete, recipe_files())


def _complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    from keras_transformer.recipe.files import shipped_runs

    return _files_and_names(incomplete, shipped_runs())


def _files_and_names(incomplete: str, names: Iterable[str]) -> list[Any]:
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *found]  # bash needs this order


run_folder = click.Path(path_type=Path)
existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)
run_argument = click.argument("run", metavar="RUN", type=run_folder, shell_complete=_complete_run)
recipe_argument = click.argument("recipe", shell_complete=complete_recipe)
file_argument = click.argument("file", type=existing_file, required=False)
set_option = click.option(
    "--set",
    "overrides",
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
backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    expose_value=False,  # `keras_transformer_cli` has read it.
    help="Backend of Keras. Default: the environment variable KERAS_BACKEND.",
)


def batch_tokens_option(default: int) -> Any:
    """Returns the option --batch-tokens. `default` is only for the help text."""
    return click.option(
        "--batch-tokens",
        "tokens_per_batch",
        type=click.IntRange(1, 2**31 - 1),
        metavar="N",
        help="Maximum number of source tokens in a batch, with padding. Smaller batches need less "
        f"memory. Default: {default}.",
    )


class _Checkpoint(click.ParamType):
    """The value of --checkpoint: `best`, `last` or a step."""

    name = "checkpoint"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in ("best", "last") or isinstance(value, int):
            return value
        if not re.fullmatch("[0-9]{1,8}", value):
            self.fail(f"{value!r} is not best, last or a step.", param, ctx)
        return int(value)


checkpoint_option = click.option(
    "--checkpoint",
    type=_Checkpoint(),
    metavar="best|last|STEP",
    help="Use the model of a checkpoint instead of the finished model: the checkpoint with the "
    "lowest validation loss, the newest checkpoint, or the checkpoint of a step.",
)
scores_option = click.option(
    "--scores", is_flag=True, help="Write the score and a tab before each translation."
)


def is_session(file: Path | None) -> bool:
    """Returns whether a user types the sentences: there is no file, and stdin is a terminal."""
    return file is None and sys.stdin.isatty()


def greet(language: str | None = None) -> None:
    """Tells a user what to type, before `prompted_lines`. `language` is that of the source."""
    known = f" ({language})" if language else ""
    hint = f"Type one sentence at a time, in the source language{known}. Ctrl-D ends."
    click.echo(hint, err=True)


def prompted_lines() -> Iterator[str]:
    """Yields the lines that a user types after a prompt, until the user presses Ctrl-D.

    The arrow keys show earlier lines. If standard output is not a terminal, the prompt is written
    to stderr.

    Raises:
        UserError: While iterating, if a line is not UTF-8.
    """
    with suppress(ImportError):  # Windows has no readline.
        import readline  # noqa: F401  # gives `input` its history
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


def check_other_file(output: Path | None, *inputs: Path | None, option: str = "--output") -> None:
    """Raises `UserError` if the output would replace one of the input files."""
    for path in inputs:
        if path and output and path.is_file() and output.is_file() and output.samefile(path):
            raise UserError(f"{option} must not be an input file. Received: {output}")


@contextmanager
def user_errors() -> Iterator[None]:
    """Shows a `ValueError`, with which a class of the package refuses an option, as one line."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


@contextmanager
def writer(output: Path | None) -> Iterator[Callable[[str], Any]]:
    """Yields a function that writes text to `output`, or to standard output if `output` is None.

    Raises:
        UserError: If the file cannot be written. The error is raised at the start of the block.
    """
    if output is None:
        # Writes bytes, because `click.echo` would remove terminal escape sequences from text.
        yield lambda text: click.echo(text.encode(), nl=False)
        return
    with output_file(output) as file:
        yield file.write


@contextmanager
def warning_lines() -> Iterator[None]:
    """Shows each warning once on stderr, without the file and line of the code that caused it.

    Keras's warning of a softmax over one value is hidden: a sentence may have one token.
    """
    shown: set[str] = set()  # Python shows a warning again after an import that sets filters.

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if (text := str(message)) not in shown:
            shown.add(text)
            click.echo(f"Warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a softmax")
        warnings.showwarning = show
        yield


def progress_bar(desc: str, total: int | None, output: Path | None = None) -> Any:
    """Returns a progress bar for sentences on stderr. `desc` says what is being done.

    It is hidden if `total` is None, or if standard output is a terminal and `output` is None.
    """
    from keras_transformer._progress import Bar, compiling

    is_shown = total is not None and (output is not None or not sys.stdout.isatty())
    return Bar(desc, compiling(), total=total, unit="sentence", disable=not is_shown)
