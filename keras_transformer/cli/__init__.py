"""The command line `keras-transformer COMMAND ...`. Each command has a module of the same name.

The module `keras_transformer_cli`, outside the package, chooses the backend and calls `main`.
"""

import difflib
import errno
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from keras_transformer._files import is_disk_full
from keras_transformer.cli import common
from keras_transformer.cli.signals import interrupted_by_signals
from keras_transformer.errors import UserError, is_out_of_memory

COMMANDS = (
    *("init", "train", "budget", "translate", "client", "score", "evaluate", "average", "export"),
    *("attention", "report", "beam", "conformance", "info", "recipes", "schema"),
)

# Errors of the file system that the user can fix with another path.
_WRONG_PLACE = {
    getattr(errno, code)
    for code in "EACCES EEXIST EISDIR ELOOP ENAMETOOLONG ENOTDIR EPERM EROFS".split()
}


class _Failure(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """Imports commands on demand, and reports each `UserError` as one line with exit status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"{__name__}.{cmd_name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        meant = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if meant and args[0] not in COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors(), interrupted_by_signals():
            return super().invoke(ctx)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
        return
    except UserError as error:
        message = str(error)
    except OSError as error:
        if is_disk_full(error):
            message = f"no space left on the disk: {error}"
        elif error.errno in _WRONG_PLACE and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        else:
            raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = f"not enough memory: {str(error)[:200]}"
    raise _Failure(" ".join(message.split()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="keras3-transformer", prog_name="keras-transformer")
@common.backend_option
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
    click.get_current_context().with_resource(common.warning_lines())
