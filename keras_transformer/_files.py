"""Writes files completely or not at all, reads small files of unknown sources, encodes images."""

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

import numpy as np
from filelock import FileLock, Timeout

from keras_transformer.errors import UserError

# The most bytes of a file of an unknown source that is read as a whole, unpacked. The largest are
# vocabularies: that of NLLB, with 256,000 pieces, takes 9 MiB as JSON.
MOST_BYTES = 16 * 1024 * 1024
# The most numbers that a byte of a file of weights can stand for.
NUMBERS_PER_BYTE = 4
# Each can be a regular file that the shell has opened. It must not be replaced.
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
_DAY = 86_400  # seconds


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Writes a file or folder under a temporary name beside `path`, then renames it to `path`.

    A symbolic link is kept and its target is replaced. A replaced file keeps its permissions. If
    `path` is an existing folder, the folder must be empty. The temporary path has the suffix of
    `path`. After any error, the old content of `path` is unchanged. If several processes write the
    same file, each writes all of it, and the last one counts. What a killed process left is removed
    by the first call a day later.

    Raises:
        UserError: If the disk is full, or if another process has written the folder meanwhile.
    """
    path = Path(path).absolute()  # The block may change the current directory.
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    partial = path.with_name(f".partial-{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        yield partial
        _move(partial, path)
    except BaseException as error:
        remove(partial)
        is_taken = path.is_dir() and getattr(error, "errno", None) == errno.ENOTEMPTY
        if is_taken or is_disk_full(error):
            full = UserError(f"no space left on the disk for {path}")
            raise (not_empty(path) if is_taken else full) from None
        raise


def _move(partial: Path, path: Path) -> None:
    """Replaces `path`, which keeps its permissions. What is mounted there is written instead."""
    if path.is_file():
        shutil.copymode(path, partial)
    try:
        os.replace(partial, path)
    except OSError as error:
        if error.errno == errno.EBUSY and path.is_file():
            shutil.copyfile(partial, path)
            partial.unlink()
        else:
            raise


def _remove_leftovers(path: Path) -> None:
    """Removes what processes that were killed a day ago left of writing `path`."""
    name, suffix = glob.escape(path.stem), glob.escape(path.suffix)
    for partial in path.parent.glob(f".partial-{name}-{'[0-9a-f]' * 8}{suffix}"):
        with suppress(OSError):  # Another process may remove or rename it.
            if time.time() - partial.stat().st_mtime > _DAY:
                remove(partial)


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Holds a lock, which the system removes if the process is killed.

    A process that already has the lock can take it again. If another process has it for more than a
    second, raises `UserError` with `message`.
    """
    try:
        with FileLock(path, timeout=1, is_singleton=True):
            yield
    except Timeout:
        raise UserError(message) from None


def write_text(path: Path, text: str) -> None:
    """Writes a text file, as `atomic_write` does."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Writes a JSON file, as `atomic_write` does."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def _opening(path: str | Path) -> Iterator[None]:
    """Raises `UserError` if the output file `path`, which the block opens, cannot be written."""
    try:
        if os.path.exists(path) and not _is_stream(path):
            open(path, "r+").close()  # raises an error for folders and read-only files
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def output_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file, a device or a pipe to write. Raises `UserError` at once if that is impossible.

    A file is written as by `atomic_write`.
    """
    with ExitStack() as stack:
        with _opening(path):
            is_stream = _is_stream(path)
            partial = path if is_stream else stack.enter_context(atomic_write(path))
            file = stack.enter_context(open(partial, "ab"))
        yield file


def _is_stream(path: str | Path) -> bool:
    is_file = os.path.isfile(path) or os.path.isdir(path)
    return (os.path.exists(path) and not is_file) or str(path).startswith(_STREAMS)


@contextmanager
def resumable_file(
    path: str | Path, block_lines: int, made_from: object
) -> Iterator[tuple[Callable[[str], Any], int]]:
    """Opens an output file whose text a later call continues if this one is stopped.

    The text consists of blocks of `block_lines` lines, the last of which may have fewer. Until all
    of it is written, it is in a hidden file beside `path`. An error or a killed process leaves this
    file there, and the next call with the same `made_from` keeps its complete blocks. So this value
    must have a `repr` that differs between any two texts.

    Yields:
        A function that writes a block, and the number of the blocks that are already written, which
        is 0 of a device or a pipe.
    """
    if _is_stream(path):
        with output_file(path) as stream:
            yield stream.write, 0
        return
    path = Path(os.path.realpath(path))
    key = hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]
    partial, done, end = path.with_name(f".partial-{key}-{path.name}"), 0, 0
    lock = path.with_name(f".lock-{key}-{path.name}")
    with ExitStack() as stack:
        with _opening(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(lock, f"another process is writing {path}: wait for it"))
            stack.callback(lock.unlink)
            file = partial.open("a+b")
        with file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                if number % block_lines == 0 and line.endswith(b"\n"):
                    done, end = number // block_lines, file.tell()
            file.truncate(end)

            def write(block: str) -> None:
                file.write(block.encode())
                file.flush()

            yield write, done
        _move(partial, path)


@contextmanager
def output_file(path: str | Path) -> Iterator[TextIO]:
    """Opens a text file as `output_bytes` does. A device or a pipe is written line by line."""
    with output_bytes(path) as file:
        with TextIOWrapper(file, encoding="utf-8", line_buffering=_is_stream(path)) as text:
            yield text


def keras_home() -> Path:
    """Returns Keras's folder for downloads."""
    home = Path(os.path.expanduser(os.environ.get("KERAS_HOME") or "~/.keras"))
    existing = next(x for x in (home, *home.parents, Path()) if os.path.exists(x))
    return home if os.access(existing, os.W_OK) else Path(tempfile.gettempdir()) / ".keras"


def as_line(text: str) -> str:
    r"""Replaces "\r" and "\n" in a text by spaces, so that the text is a single line."""
    return text.replace("\n", " ").replace("\r", " ")


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error means that the disk or the user's quota is full."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # Errors of HDF5 have the code only in the message, those of TensorFlow its text.
    signs = [*(f"errno = {code}," for code in codes), *map(os.strerror, codes)]
    return getattr(error, "errno", None) in codes or any(sign in f"{error}" for sign in signs)


def open_regular(path: str | Path) -> BufferedReader:
    """Opens a file of an unknown source, or what a link names. Opening a pipe could take forever.

    Raises `OSError` if there is no such file, and `UserError` if it is a device or a pipe.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(f"{path} must be a regular file, not a folder, a device or a pipe")
    return open(path, "rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads a file of an unknown source as a whole.

    Raises errors as `open_regular` does, and `UserError` if it has more than `most` bytes (16 MiB).
    """
    with open_regular(path) as file:
        return read_all(file, path, most)


def read_all(file: IO[bytes], name: str | Path, most: int = MOST_BYTES) -> bytes:
    """Reads the rest of an open file, which may be compressed. Raises errors as `read_bytes`."""
    content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{name} must have at most {most:,} bytes")
    return content


def read_text(path: Path) -> str:
    """Returns the beginning of a text, at most 16 MiB, or "" if there is no such file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", errors="replace")


def parse_json(content: bytes) -> Any:
    """Parses JSON. Raises `ValueError` if it is wrong or too deep."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Parses a JSON file of an unknown source. Raises errors as `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path, most))


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Reads a list of JSON objects. Returns an empty list if the file does not exist."""
    if not path.exists():
        return []
    try:
        entries = read_json(path)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("it must contain a list of objects")
    except (ValueError, OSError) as error:
        advice = "Repair or move it: without it, a new list is begun"
        raise UserError(f"{path} cannot be read: {error}. {advice}") from None
    return entries


def read_json_members(path: str | Path) -> dict[str, Any]:
    """Reads the JSON files in a `.keras` file of an unknown source, by their names.

    Call this function before `keras.saving.load_model`, which unpacks files of any size.

    Raises:
        UserError: If the archive is damaged, or has a large file other than weights, or weights
            that take more than four times the bytes of the archive.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():  # A member never has more bytes than it says.
                is_weights = member.filename == "model.weights.h5"
                most = NUMBERS_PER_BYTE * os.path.getsize(path) if is_weights else MOST_BYTES
                if member.file_size > most:
                    raise ValueError(
                        f"{member.filename} must have at most {most:,} bytes. "
                        f"Received: {member.file_size:,}"
                    )
            names = [x for x in archive.namelist() if x.endswith(".json")]
            found = {name: parse_json(archive.read(name)) for name in names}
        if not isinstance(found.get("config.json"), dict):
            raise ValueError("config.json must be a JSON object")
    except Exception as error:  # zipfile, zlib, struct and json raise different errors
        raise damaged_keras_file(path, error) from error
    return found


def damaged_keras_file(path: str | Path, error: Exception) -> UserError:
    """Returns the error for a `.keras` file that cannot be read, with the reason in one line."""
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{path} is not a complete Keras model file: {reason}")


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as hex digits, without loading the whole file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str, name: str) -> None:
    """Raises `ValueError` if a file, which the message calls `name`, has another SHA-256."""
    if (received := sha256_of(path)) != expected:
        raise ValueError(f"the SHA-256 of {name} must be {expected}. Received: {received}")


def remove(path: Path) -> None:
    """Removes a file or a folder. Does nothing if `path` does not exist."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_is_free(directory: str | Path) -> None:
    """Raises UserError if the path exists and is not an empty folder, or if it is mounted."""
    path = Path(directory)
    if path.is_file() or os.path.ismount(path) or (path.is_dir() and any(path.iterdir())):
        raise not_empty(path)


def check_other_file(output: Path | None, *others: Path | None, option: str = "--output") -> None:
    """Raises `UserError` if an output would replace an input or another output."""
    for path in others:
        if not (path and output):
            continue
        is_file = path.is_file() and output.is_file() and output.samefile(path)
        if is_file or (not output.exists() and path.resolve() == output.resolve()):
            raise UserError(
                f"{option} must not be an input file or another output. Received: {output}"
            )


def not_empty(directory: Path) -> UserError:
    """Returns the error for a folder to write that has files, or is mounted."""
    what = "a mount point" if os.path.ismount(directory) else "not empty"
    return UserError(f"{directory} is {what}: remove it, or name another folder")


def png(pixels: np.ndarray) -> bytes:
    """Encodes an image, uint8 `(height, width, 3)`, as PNG, without an imaging library."""
    height, width, _ = pixels.shape
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # Each row begins with its filter.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes(), 9), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )
