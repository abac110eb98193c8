"""Reads and checks lines and parallel text from files and standard input."""

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


class CorpusError(UserError, ValueError):
    """Raised if a text file is missing, damaged, not UTF-8 or not aligned with the other file."""


def read_parallel(source_path: str | Path, target_path: str | Path | None = None) -> Iterable[Pair]:
    r"""Reads parallel text from two line-aligned files, or from one TSV file.

    Lines end with "\n" or "\r\n". Unicode's other line separators do not end a line. A byte order
    mark is skipped. Files may be gzipped. Only one pair of lines is in memory at a time.

    Example:

    ```python
    for source, target in read_parallel("train.en.gz", "train.de.gz"):
        print(source, "=", target)
    ```

    Args:
        source_path: File with one source sentence per line. If `target_path` is None, the file is a
            TSV file: each line has a source sentence, a tab and a target sentence.
        target_path: File with one target sentence per line. Defaults to None.

    Returns:
        An iterable of (source, target) pairs that can be iterated over repeatedly. Pairs with an
        empty line are included. `TokenStore.build` drops and counts such pairs.

    Raises:
        CorpusError: While iterating, if a file cannot be read or is not UTF-8. The message names
            the file and, if a line is invalid, the number of the line.
        CorpusError: While iterating, if a line is longer than 1 MiB, if the files have different
            numbers of lines, or if a TSV line does not have two fields.
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
                "line-aligned files must have the same number of lines. Add or remove lines, so "
                "that each line translates the line of the same number. Received: "
                f"{self.source_path} with {counts[0]:,} and {self.target_path} with "
                f"{counts[1]:,} lines"
            )

    def _tab_separated(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.source_path), start=1):
            fields = line.split("\t")
            if len(fields) != 2:
                advice = "; `cut -f 1,2` keeps the first two" if len(fields) > 2 else ""
                raise CorpusError(
                    f"{self.source_path}, line {number:,}: a line must have a source, a tab and a "
                    f"target. Received: {len(fields)} fields{advice}"
                )
            yield fields[0], fields[1]


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
    """Reads the lines of standard input, without their line ends.

    Raises:
        CorpusError: If standard input cannot be read, is not UTF-8 or has a line longer than 1 MiB.
    """
    stdin = sys.stdin  # not closed: Python aborts if standard input is closed during a read
    try:
        yield from _lines(stdin.buffer, "standard input")
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
    `items` raises an exception, all earlier items are yielded first. Then the exception is raised.
    """
    arrived: queue.Queue[Any] = queue.Queue(most)
    is_abandoned = threading.Event()

    def put(item: Any) -> None:
        while not is_abandoned.is_set():
            with suppress(queue.Full):
                return arrived.put(item, timeout=1)

    errors: list[BaseException] = []  # raised again in the thread that reads the queue

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
            chunk = _next_chunk(arrived, most)
            if arrived_items := [item for item in chunk if item is not _END]:
                yield arrived_items
    finally:
        is_abandoned.set()
    if errors:
        raise errors[0]


def _next_chunk(arrived: "queue.Queue[Any]", most: int) -> list[Any]:
    chunk = [arrived.get()]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(chunk) < most and chunk[-1] is not _END:
        try:
            chunk.append(arrived.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
    return chunk
