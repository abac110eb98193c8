"""The command line `keras-transformer COMMAND ...`. Each command has a module of the same name.

The modules are imported on demand. A module imports Keras and NumPy only when its command runs, so
`--help` and errors in arguments appear at once.
"""

import atexit
import difflib
import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from keras_transformer import __version__, _backend
from keras_transformer._files import is_disk_full
from keras_transformer.cli import common
from keras_transformer.cli.interrupts import kept_interrupts
from keras_transformer.errors import RecipeError, UserError, is_out_of_memory

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

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        _prepare_streams()
        with _one_line_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors():
            try:
                with kept_interrupts():
                    return super().invoke(ctx)
            except KeyboardInterrupt as interrupt:
                click.echo(err=True)
                (number,) = interrupt.args or (signal.SIGINT,)
                # One more Ctrl-C, while Python exits, ends the process without a traceback.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                raise click.exceptions.Exit(128 + number) from None  # as shells report a signal
            except RecipeError:
                raise
            except UserError as error:
                command = self.get_command(ctx, str(ctx.invoked_subcommand))
                raise UserError(common.with_option_names(str(error), command)) from error


def _prepare_streams() -> None:
    """Replaces closed standard streams by the null device, and encodes output as UTF-8.

    If a stream stayed closed, the next file that Python opens would get the file descriptor of the
    stream. Libraries would then write messages into this file. Reading a replaced standard input
    raises OSError.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The null device gets the file descriptor of the closed stream.
            null = open(os.devnull, "r" if name == "stdin" else "w", opener=_open_for_writing)
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Without `line_buffering`, a log file gets the lines of `print` late.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _open_for_writing(path: str, _: int) -> int:
    return os.open(path, os.O_WRONLY)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
        return
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if error.name not in _backend.BACKENDS:
            raise
        others = ", ".join(_backend.installed_backends())
        message = (
            f"the backend {error.name} is not installed: "
            + (f"set KERAS_BACKEND to an installed backend ({others}), or " if others else "")
            + f"pip install 'keras3-transformer[{error.name}]'"
        )
    except OSError as error:
        if is_disk_full(error):
            message = f"no space left on the disk: {error}"
        elif error.errno in _WRONG_PLACE and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        elif error.errno == errno.EBADF and error.filename is None:
            message = "a standard stream is closed, or has the wrong mode"
        else:
            raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = f"not enough memory: {str(error)[:200]}"
    raise _Failure(" ".join(message.split()))


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="keras-transformer")
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
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before any command loads TensorFlow
    if not os.environ.get("KERAS_HOME"):  # Keras takes "" for the current folder.
        os.environ.pop("KERAS_HOME", None)
    context = click.get_current_context()
    context.with_resource(common.warning_lines())
    atexit.register(gc.freeze)  # Python then ends up to a second faster: it collects no garbage.
    common.choose_backend()
