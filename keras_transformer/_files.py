"""Writes files atomically, and safely reads files from unknown sources."""

import copy
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from keras_transformer.errors import UserError

# Most file systems allow names of 255 bytes. `is_plain_name` leaves room for prefix and suffix.
_LONGEST_NAME_BYTES, _LONGEST_PLAIN_NAME_BYTES = 255, 200
# The configuration of a Keras model with a thousand layers takes about 1 MiB.
_MOST_JSON_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Writes a file or folder under a temporary name, flushes it, and renames it to `path`.

    If `path` is a symbolic link, the target of the link is replaced and the link is kept. The
    new file gets the permissions of the file that it replaces. If `path` is an existing folder, the
    folder must be empty.

    Yields:
        The temporary path, which has the folder and the suffix of `path`. If a killed process left
        a file at the temporary path, that file is removed first.

    Raises:
        UserError: If the disk is full. A full disk leaves the old content of `path` unchanged.
    """
    path = Path(path)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    partial = path.with_name(_partial_name(path))
    remove(partial)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if path.is_file():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        _flush(partial)
        os.replace(partial, path)
        _flush_entry(path.parent)
    except BaseException as error:
        remove(partial)
        if is_disk_full(error):
            raise UserError(f"no space left on the disk for {path}") from None
        raise


@contextmanager
def output_path(path: Path) -> Iterator[Path]:
    """Writes a file as `atomic_write` does, but tells at once if it cannot be written.

    Raises:
        UserError: If the file cannot be written. The start of the `with` block raises this error.
    """
    with ExitStack() as stack:
        try:
            partial = stack.enter_context(atomic_write(path))
            partial.touch()
        except OSError as error:
            if is_disk_full(error):
                raise
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        yield partial


@contextmanager
def output_file(path: str | Path) -> Iterator[TextIO]:
    """Opens an output file for UTF-8 text.

    A regular file is replaced only when the `with` block ends without an error. A device or a pipe,
    such as /dev/stdout, is written directly, line by line.

    Raises:
        UserError: If the file cannot be written. The start of the `with` block raises this error.
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


def keras_home() -> Path:
    """Returns Keras's folder for downloads, without the slow import of Keras."""
    home = Path(os.path.expanduser(os.environ.get("KERAS_HOME") or "~/.keras"))
    existing = next((x for x in (home, *home.parents) if os.path.exists(x)), home)
    return home if os.access(existing, os.W_OK) else Path(tempfile.gettempdir()) / ".keras"


def as_line(text: str) -> str:
    r"""Replaces "\r" and "\n" in a text by spaces, so that the text is a single line."""
    return text.replace("\n", " ").replace("\r", " ")


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error means that the disk or the user's quota is full."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if any(kind.__name__ == "OpError" for kind in type(error).__mro__):  # of TensorFlow
        return any(os.strerror(code) in str(error) for code in codes)
    # Errors of HDF5 have the code only in the message.
    return isinstance(error, OSError) and (
        error.errno in codes or any(f"errno = {code}," in str(error) for code in codes)
    )


def is_plain_name(name: str) -> bool:
    """Returns whether a name from an unknown source is a safe file name.

    A safe name has no path separator of any operating system, no leading dot, only printable
    characters, and at most 200 bytes.
    """
    return (
        name.isprintable()
        and not name.startswith(".")
        and not set(name) & set("/\\:")
        and 0 < len(name.encode()) <= _LONGEST_PLAIN_NAME_BYTES
    )


def read_json(file: IO[bytes], most_bytes: int) -> Any:
    """Parses a JSON file of at most `most_bytes` bytes.

    Raises:
        ValueError: If the file has more bytes, is nested too deeply, or is not JSON.
    """
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"the JSON file must have at most {most_bytes:,} bytes. Received: more")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as hex digits, without loading the whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Reads a list of JSON objects. Returns an empty list if the file does not exist."""
    if not path.exists():
        return []
    advice = "Repair or move it: without it, a new list is begun"
    try:
        entries = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}. {advice}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} must contain a list of objects. {advice}")
    return entries


def read_text(path: Path) -> str:
    """Returns the text of a small file, or "" if there is no such file."""
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def read_config(path: str | Path) -> dict[str, Any]:
    """Reads the configuration of a `.keras` file, and rejects files that would fill the memory.

    Call this function before `keras.saving.load_model`, which does not check sizes. `config.json`
    and `metadata.json` must have at most 4 MiB each. Each file in the archive must have at most the
    number of bytes that its zip header states.

    Raises:
        UserError: If the archive is damaged or a file in it is too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_size(archive, member)
            with archive.open("config.json") as file:
                config = read_json(file, _MOST_JSON_BYTES)
        if not isinstance(config, dict):
            raise ValueError("config.json must be a JSON object")
    except Exception as error:  # zipfile, zlib, struct and json raise different errors
        raise damaged_keras_file(path, error) from error
    return config


def is_keras_file(path: str | Path) -> bool:
    """Returns whether `read_config` can read the file `path`."""
    try:
        read_config(path)
    except UserError:
        return False
    return True


def damaged_keras_file(path: str | Path, error: Exception) -> UserError:
    """Returns the error for a `.keras` file that cannot be read, with the reason in one line."""
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{path} is not a complete Keras model file: {reason}")


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
    # /dev/stdout can be a regular file that the shell has opened. Such a file must not be replaced.
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


def remove(path: Path) -> None:
    """Removes a file or a folder. Does nothing if `path` does not exist."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_is_free(directory: str | Path) -> None:
    """Raises UserError if the path exists and is not an empty folder."""
    directory = Path(directory)
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(f"{directory} is not empty: remove it, or name another folder")


def _flush(path: Path) -> None:
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _flush_entry(entry)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name, size = member.filename, member.file_size
    if name in ("config.json", "metadata.json") and size > _MOST_JSON_BYTES:
        raise ValueError(f"{name} must have at most {_MOST_JSON_BYTES:,} bytes. Received: {size:,}")
    if member.compress_type == zipfile.ZIP_STORED:
        return  # Keras writes all members uncompressed
    if member.compress_type != zipfile.ZIP_DEFLATED:
        # `zipfile` cannot limit the memory for other compression types.
        raise ValueError(f"{name} must be stored or deflated in the archive")
    unbounded = copy.copy(member)
    unbounded.file_size = size + 1  # `zipfile` reads at most this many bytes
    del unbounded.CRC  # Keras checks the CRC later
    with archive.open(unbounded) as file:
        if sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b"")) > size:
            raise ValueError(
                f"{name} must have {size:,} bytes, as its header states. Received: more"
            )
