"""Defines the exception for problems that the user can fix, and checks that many modules need."""

import importlib
import re
from numbers import Integral
from typing import Any

# Parts of the messages of the backends and the operating system when memory is full.
_OUT_OF_MEMORY = re.compile(
    "out of memory|resource_?exhausted|bad_alloc|memoryerror|can't allocate memory|"
    "failed to allocate|unable to allocate",
    re.IGNORECASE,
)


class UserError(Exception):
    """Reports a problem that the user can fix: a bad file, recipe or argument, or a full disk.

    The command line prints the message as one line and exits with status 2. Any other exception
    is a bug in the package, and its traceback is shown.
    """


def imported(module: str, extra: str, needs: str) -> Any:
    """Returns a module that only an extra of this package installs.

    If it is not installed, raises `UserError` with the command that installs it. `needs` is the
    beginning of the message, such as "reading a.po needs".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        command = f"pip install 'keras3-transformer[{extra}]'"
        raise UserError(f"{needs} {error.name}: {command}") from None


def is_out_of_memory(error: Exception | str) -> bool:
    """Returns whether an error, or the error output of a process, reports that memory is full."""
    return bool(_OUT_OF_MEMORY.search(error if isinstance(error, str) else repr(error)))


def check_sizes(**sizes: Any) -> None:
    """Raises `ValueError` if a size is not an integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"`{name}` must be an integer of at least 1. Received: {name}={size}")


def check_is_list(**texts: Any) -> None:
    """Raises `TypeError` if a string was given in place of a list of strings."""
    for name, given in texts.items():
        if isinstance(given, str | bytes):
            raise TypeError(f"`{name}` must be a list of strings. Received: {given!r:.200}")


def check_ids(end: int, **arrays: Any) -> None:
    """Raises `ValueError` if values of a NumPy array are not integers in `range(end)`."""
    for name, array in arrays.items():
        # NaN has no remainder that equals 0.
        if array.size and (array.min() < 0 or array.max() >= end or (array % 1 != 0).any()):
            raise ValueError(
                f"`{name}` must be integers from 0 to {end - 1}. "
                f"Received: values from {array.min()} to {array.max()}, dtype={array.dtype}"
            )
