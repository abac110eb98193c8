"""The command line `keras-transformer COMMAND ...`.

The module `keras_transformer_cli`, outside the package, chooses the backend and calls `main`.
"""

import difflib
import errno
import importlib
import io
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import click

from keras_transformer._files import is_disk_full
from keras_transformer.cli import parameters, terminal
from keras_transformer.cli.process import interrupted_by_signals
from keras_transformer.errors import UserError, is_out_of_memory

# Each command, and its module.
COMMANDS = {
    **{"init": "init", "train": "train", "budget": "train"},
    **{"translate": "translate", "generate": "translate"},
    **{"import": "import_run", "vocabulary": "import_run"},
    **{"serve": "serve", "score": "evaluate", "average": "train"},
    **dict.fromkeys(("evaluate", "evaluate-file", "compare"), "evaluate"),
    **{"export": "export", "push": "export"},
    **dict.fromkeys(("attention", "report", "beam"), "pages"),
    **{"conformance": "conformance", "info": "info", "recipes": "info", "schema": "info"},
}

# If this environment variable is set, an error that is reported as one line shows its traceback.
_TRACEBACK = "KERAS_TRANSFORMER_TRACEBACK"
# Errors of the file system that the user can fix with another path.
_WRONG_PLACE = {errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP}
_WRONG_PLACE |= {errno.EBUSY, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS}


class _Commands(click.Group):
    """Imports commands on demand, and reports errors as one line with exit status 2.

    These are each `UserError`, and what code of the user raises, such as a model of its own.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        meant = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if meant and args[0] not in COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupted_by_signals():
                return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except Exception as error:
            if (message := _in_one_line(error)) is None:
                raise
            if os.environ.get(_TRACEBACK):
                traceback.print_exception(error)
        click.echo(f"Error: {' '.join(terminal.printable(message).split())}", err=True)
        raise click.exceptions.Exit(2)


def _in_one_line(error: Exception) -> str | None:
    """Returns what to tell the user about an error, or None if it needs its traceback."""
    if isinstance(error, OSError):
        if is_disk_full(error):
            return f"no space left on the disk: {error}"
        if error.errno in _WRONG_PLACE and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
    if is_out_of_memory(error):
        return f"not enough memory: {str(error)[:200]}"
    if isinstance(error, UserError):
        return f"{error}{_place_in_other_code(error.__cause__ or error.__context__)}"
    place = _place_in_other_code(error)
    return f"{type(error).__name__}: {error}{place}" if place else None


def _place_in_other_code(error: BaseException | None) -> str:
    """Returns where a program or module of the user raised an error, or "" if none did."""
    stdlib, package = Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1]
    libraries = {"site-packages", "dist-packages"}
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            path = Path(frame.filename)
            is_library = {stdlib, package} & {*path.parents} or libraries & {*path.parts}
            if path.is_file() and not is_library:
                return f" [{path}, line {frame.lineno}; {_TRACEBACK}=1 shows the traceback]"
        error = error.__cause__ or error.__context__
    return ""


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="keras3-transformer", prog_name="keras-transformer")
@parameters.backend_option
def main() -> None:
    """Train, use, evaluate and export Transformers for translation on TensorFlow, JAX or PyTorch.

    The option --backend or the environment variable KERAS_BACKEND selects the backend: tensorflow,
    jax or torch. Without them, the command uses the only installed backend, or else the backend
    that is set in ~/.keras/keras.json (tensorflow, if nothing else is set).

    \b
    keras-transformer train quickstart
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer evaluate runs/quickstart --backend jax
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Without `line_buffering`, a log file gets the lines of `print` late.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    click.get_current_context().with_resource(terminal.warning_lines())
