"""Reads and checks lines and parallel text from files and standard input, and downloads files."""

import gzip
import itertools
import queue
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote
from urllib.request import urlopen

from keras_transformer._files import atomic_write, keras_home, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.errors import UserError

Pair = tuple[str, str]
Item = TypeVar("Item")

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A thousand times the bytes of a long sentence. The limit saves memory: a gzipped file of 1 MB can
# have a line of 1 GB, and encoding keeps several copies of a line in memory.
_LONGEST_LINE = 1024 * 1024
# How long `available_chunks` waits for further items: too short for a person to notice.
_PATIENCE_SECONDS = 0.05
_SILENCE_SECONDS = 60.0  # of a server


class CorpusError(UserError, ValueError):
    """Raised if a text file is missing, damaged, not UTF-8 or not aligned with the other file."""


def read_parallel(source_path: str | Path, target_path: str | Path | None = None) -> Iterable[Pair]:
    r"""Reads parallel text from two line-aligned files, or from one TSV file.

    Lines end with "\n" or "\r\n". Unicode's other line separators do not end a line. A byte order
    mark is skipped. Files may be gzipped. Only one pair of lines is in memory at a time.

    Example:

    >>> for source, target in read_parallel("train.en.gz", "train.de.gz"):
    ...     print(source, "=", target)

    Args:
        source_path: File with one source sentence per line. If `target_path` is None, the file is a
            TSV file: each line has a source sentence, a tab and a target sentence.
        target_path: File with one target sentence per line. Defaults to None.

    Returns:
        An iterable of (source, target) pairs that can be iterated over repeatedly. Pairs with an
        empty line are included. `TokenStore.build` drops and counts such pairs.

    Raises:
        CorpusError: While iterating, if a file cannot be read or is not UTF-8, if a line is longer
            than 1 MiB, if the files have different numbers of lines, or if a TSV line does not have
            two fields.
    """
    return _ParallelText(source_path, target_path)


@dataclass
class _ParallelText:
    source_path: str | Path
    target_path: str | Path | None

    def __iter__(self) -> Iterator[Pair]:
        if self.target_path is None:
            yield from self._tab_separated()
            return
        counts = [0, 0]
        sides = read_lines(self.source_path), read_lines(self.target_path)
        for source, target in itertools.zip_longest(*sides):
            counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
            if counts[0] == counts[1]:
                yield source, target
        if counts[0] != counts[1]:
            raise CorpusError(
                "line-aligned files must have the same number of lines. Received: "
                f"{self.source_path} with {counts[0]:,} and {self.target_path} with "
                f"{counts[1]:,} lines"
            )

    def _tab_separated(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.source_path), start=1):
            source, *fields = line.split("\t")
            if len(fields) != 1:
                advice = "; `cut -f 1,2` keeps the first two" if fields else ""
                raise CorpusError(
                    f"{self.source_path}, line {number:,}: a line must have a source, a tab and a "
                    f"target. Received: {1 + len(fields)} fields{advice}"
                )
            yield source, fields[0]


def read_lines(path: str | Path) -> Iterator[str]:
    """Reads the lines of a UTF-8 file, plain or gzipped, without their line ends.

    Raises:
        CorpusError: If the file cannot be read, is not UTF-8 or has a line longer than 1 MiB.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            is_gzip = file.peek(2)[:2] == _GZIP_MAGIC  # even without the suffix .gz
            yield from _lines(gzip.GzipFile(fileobj=file) if is_gzip else file, f"{path}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_standard_input() -> Iterator[str]:
    """Reads the lines of standard input, as `read_lines` those of a file."""
    try:  # It is not closed: Python aborts if standard input is closed during a read.
        yield from _lines(sys.stdin.buffer, "standard input")
    except OSError as error:
        raise CorpusError(f"standard input cannot be read: {error.strerror or error}") from None


def _lines(file: BinaryIO | gzip.GzipFile, name: str) -> Iterator[str]:
    """Yields the lines of a file, without their line ends and without a byte order mark."""
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise CorpusError(
                f"{name}, line {number:,}: a line must have at most {_LONGEST_LINE:,} bytes. "
                "Received: a longer line"
            )
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return
        try:
            yield line.removesuffix(b"\r\n").removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number:,}: text must be UTF-8. "
                f"Received: byte 0x{line[error.start]:02x} at column {error.start + 1}"
            ) from None


_END = object()  # the last item of a queue


def available_chunks(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yields lists of the items that have arrived. Each list has from 1 to `most` items.

    While the caller works on a list, a thread reads up to `most` further items into a queue. So a
    line that a user types is processed immediately, and a file is processed in long lists. If
    `items` raises an exception, it is raised again after all earlier items.
    """
    arrived: queue.Queue[Any] = queue.Queue(most)
    is_abandoned = threading.Event()
    errors: list[BaseException] = []

    def put(item: Any) -> None:
        while not is_abandoned.is_set():
            with suppress(queue.Full):
                return arrived.put(item, timeout=1)

    def take() -> None:
        try:
            for item in items:
                put(item)
                if is_abandoned.is_set():
                    return
        except BaseException as error:
            errors.append(error)
        put(_END)

    threading.Thread(target=take, daemon=True).start()
    chunk: list[Any] = [None]
    try:
        while chunk[-1] is not _END:
            chunk = [arrived.get()]
            deadline = time.monotonic() + _PATIENCE_SECONDS
            with suppress(queue.Empty):
                while len(chunk) < most and chunk[-1] is not _END:
                    chunk.append(arrived.get(timeout=max(0.0, deadline - time.monotonic())))
            if found := [item for item in chunk if item is not _END]:
                yield found
    finally:
        is_abandoned.set()
    if errors:
        raise errors[0]


def download(name: str, folder_url: str, sha256: str) -> Path:
    """Downloads a file into the cache if the cache does not have the file.

    The cache is the folder `keras_transformer/<first 16 digits of the SHA-256>` in `KERAS_HOME`, by
    default in `~/.keras`. A file is moved into the cache after its download is complete and
    verified. Every call verifies the file in the cache, and downloads a damaged file again.

    Raises:
        UserError: If the download fails, if the server is silent for a minute, or if the SHA-256 of
            the file is not `sha256` (64 lower-case hex digits).
    """
    path = keras_home() / "keras_transformer" / sha256[:16] / name
    url = f"{folder_url.rstrip('/')}/{quote(name)}"
    try:
        if not path.is_file() or sha256_of(path) != sha256:
            with atomic_write(path) as partial:
                with partial.open("wb") as file, urlopen(url, timeout=_SILENCE_SECONDS) as response:
                    size = response.length  # None if the server does not tell
                    with Bar(name, total=size, unit="B", unit_scale=True) as bar:
                        while chunk := response.read(64 * 1024):
                            bar.update(file.write(chunk))
                if (received := sha256_of(partial)) != sha256:
                    raise ValueError(f"the SHA-256 must be {sha256}. Received: {received}")
    except Exception as error:  # urllib and the system raise different errors
        message = (
            f"{url} cannot be fetched (for local files, use --data-dir, or set data.directory of "
            f"the recipe): {error}"
        )
        raise UserError(" ".join(message.split())) from error
    return path
