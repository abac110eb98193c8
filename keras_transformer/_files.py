"""Files: writing that leaves the old state or the new one; reading that trusts no stranger."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from keras_transformer.errors import UserError

# File systems take 255 bytes; the rest is room for what is put before or after the name.
_LONGEST_NAME_BYTES = 200


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Write a file or a folder beside its place, flush it to disk, and rename it into place.

    Example:

    ```python
    with atomic_write(run / "scores.json") as partial:
        partial.write_text(text)
    ```

    Args:
        path: the file or folder to appear. A folder must not exist yet, or be empty.

    Yields:
        Where to write: a path of the same suffix in the same folder. What a killed process left
        there is removed first.

    Raises:
        UserError: if the disk is full. What was at `path` before is still there.
    """
    path = Path(path)
    partial = path.with_name(f".partial-{path.name}")
    _remove(partial)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        os.replace(partial, path)
        _flush_entry(path.parent)
    except BaseException as error:
        _remove(partial)
        if is_disk_full(error):
            raise UserError(f"no space left on the disk for {path}") from None
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or the share of it that one may use, is full."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # HDF5 gives the number in its message alone.
    return isinstance(error, OSError) and (
        error.errno in codes or any(f"errno = {code}," in str(error) for code in codes)
    )


def is_plain_name(name: str) -> bool:
    """Whether a name that a stranger chose can only be that of a visible file in a given folder.

    It has no separator (of any operating system), no leading dot, only printable characters, and
    at most 200 bytes.
    """
    return (
        name.isprintable()
        and not name.startswith(".")
        and not set(name) & set("/\\:")
        and 0 < len(name.encode()) <= _LONGEST_NAME_BYTES
    )


def read_json(file: IO[bytes], most_bytes: int) -> Any:
    """Parse a JSON file, unless it is too large or nested too deeply for its purpose.

    Args:
        file: open for reading bytes.
        most_bytes: size of the largest file that is parsed; no more is read.

    Raises:
        ValueError: if the file is too large, nested too deeply, or no JSON.
    """
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it must have at most {most_bytes:,} bytes. Received: a larger file")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _flush_entry(entry)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
