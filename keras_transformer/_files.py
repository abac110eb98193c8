"""Files: writing that leaves the old state or the new one; reading of files from strangers."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from keras_transformer.errors import UserError

# Usual file systems allow 255 bytes; a name from a stranger leaves room for a prefix or a suffix.
_LONGEST_NAME_BYTES, _LONGEST_PLAIN_NAME_BYTES = 255, 200
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Writes a file or a folder under a temporary name, flushes it to disk, and renames it.

    If `path` is a symbolic link, its target is replaced and the link stays. A file that is replaced
    keeps its permissions.

    Example:

    ```python
    with atomic_write(run / "scores.json") as partial:
        partial.write_text(text)
    ```

    Args:
        path: The file or folder to write. A folder must not exist yet, or be empty.

    Yields:
        The temporary path to write to, with the same suffix in the same folder. What a killed
        process left there is removed first.

    Raises:
        UserError: If the disk is full. The previous content of `path` stays.
    """
    path = Path(path)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    partial = path.with_name(_partial_name(path))
    _remove(partial)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if path.is_file():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        _flush(partial)
        os.replace(partial, path)
        _flush_entry(path.parent)
    except BaseException as error:
        _remove(partial)
        if is_disk_full(error):
            raise UserError(f"no space left on the disk for {path}") from None
        raise


@contextmanager
def output_file(path: str | Path) -> Iterator[TextIO]:
    """Opens a file that the user has named as output, for UTF-8 text.

    A regular file is written by `atomic_write`: it is replaced when the block ends without an
    error. A device or a pipe, such as /dev/stdout, is written directly, line by line.

    Raises:
        UserError: On entering, if the file cannot be written: it is a folder or write-protected,
            its name is too long, or its folder cannot be written.
    """
    path = Path(path)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(_opened(path))
        except OSError as error:
            if is_disk_full(error):
                raise
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        yield file


def copy_file(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source` (a hard link), or a copy where links do not work.

    `target` is replaced in one step.
    """
    partial = target.with_name(_partial_name(target))
    _remove(partial)
    try:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copy2(source, partial)
            _flush_entry(partial)
        os.replace(partial, target)
    finally:
        _remove(partial)  # renaming does nothing if `target` is already a link to the same file


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk or the user's quota is full."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # HDF5 gives the number only in its message.
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
        and 0 < len(name.encode()) <= _LONGEST_PLAIN_NAME_BYTES
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


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | 0o666
    else:
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # /dev/stdout can be a regular file that the shell has opened; it must not be replaced.
    if not stat.S_ISREG(mode) or str(path.absolute()).startswith(_STREAMS):
        with path.open("a", buffering=1, encoding="utf-8") as file:
            yield file
        return

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, stat.S_IMODE(mode))

    with (
        atomic_write(path) as partial,
        open(partial, "w", encoding="utf-8", opener=create) as file,
    ):
        yield file


def _partial_name(path: Path) -> str:
    name = f".partial-{path.name}"
    if len(os.fsencode(name)) <= _LONGEST_NAME_BYTES:
        return name
    return f".partial-{hashlib.sha256(os.fsencode(path.name)).hexdigest()}{path.suffix}"


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
