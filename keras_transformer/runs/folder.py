"""What all parts of a run know of its folder: its locks, and the commands to show to the user."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from keras_transformer._files import locked
from keras_transformer.architectures import command_line
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import name_of


def run_command(directory: Path, architecture: str, name: str, *options: str) -> str:
    """Returns a command line for the run in a folder, to show to the user."""
    program = command_line(architecture)
    return " ".join((program, name, shlex.quote(name_of(directory)), *options))


@contextmanager
def training_lock(directory: Path) -> Iterator[None]:
    """Locks a folder so that only one process trains in it, as `locked`. Creates the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    # `Run.is_training` holds the lock for an instant, and `locked` waits that long.
    message = f"another process is training in {directory}: wait for it, or choose another folder"
    with locked(directory / ".lock", message):
        yield


def writing_lock(directory: Path) -> FileLock:
    """Returns the lock for writing the model, its conversion, the shortlist or the scores.

    Raises `UserError` if the folder is read-only.
    """
    if not os.access(directory, os.W_OK):
        raise UserError(
            f"{directory} is read-only: copy it to a folder in which you can write, and "
            "use the copy"
        )
    return FileLock(directory / ".write.lock")
