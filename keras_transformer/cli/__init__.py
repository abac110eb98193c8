"""The command line `keras-transformer COMMAND ...`. Each command has a module of the same name.

The module of a command is imported only if the user types that command. The module imports Keras
and NumPy only when the command runs, so `--help` and errors in arguments appear at once.
"""

import errno
import importlib
import os
from typing import Any

import click

from keras_transformer import __version__
from keras_transformer._files import is_disk_full
from keras_transformer.errors import UserError

COMMANDS = (
    *("train", "budget", "translate", "client", "score", "evaluate", "average", "export"),
    "conformance",
)

# Errors of the file system that the user can fix with another path.
_WRONG_PLACE = {
    getattr(errno, code)
    for code in "EACCES EEXIST EISDIR ELOOP ENAMETOOLONG ENOTDIR EPERM EROFS".split()
}


class _Failure(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """Imports commands on demand; prints a `UserError` as one line and exits with status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"{__name__}.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            message = str(error)
        except OSError as error:
            if is_disk_full(error):
                message = f"no space left on the disk: {error}"
            elif error.errno in _WRONG_PLACE and error.filename is not None:
                message = f"{error.filename}: {error.strerror}"
            else:
                raise
        raise _Failure(" ".join(message.split()))


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="keras-transformer")
def main() -> None:
    """Train, evaluate and export a Transformer, and translate, on TensorFlow, JAX or PyTorch.

    The environment variable KERAS_BACKEND selects the backend: tensorflow, jax or torch.

    \b
    keras-transformer train quickstart
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer evaluate runs/quickstart
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before any command loads TensorFlow
