"""Parallel text from files, checked while it is read."""

import gzip
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from keras_transformer.errors import UserError

Pair = tuple[str, str]

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A line is held in memory, several times over while it is encoded. This is a thousand times a long
# sentence; without a bound, a gzipped file of a megabyte is a line of a gigabyte.
_LONGEST_LINE = 1024 * 1024


class CorpusError(UserError, ValueError):
    """Text files that are missing, damaged, not UTF-8 or not aligned line by line."""


def read_parallel(source_path: str | Path, target_path: str | Path | None = None) -> Iterable[Pair]:
    r"""Parallel text from two line-aligned files, or from one TSV file.

    Lines end at "\n" (or "\r\n") and nowhere else: other line separators of Unicode are text. A
    byte order mark is skipped. Files may be gzipped. Nothing is held in memory but one line.

    Example:

    ```python
    for source, target in read_parallel("train.en.gz", "train.de.gz"):
        print(source, "=", target)
    ```

    Args:
        source_path: source sentences, one a line; with `target_path=None`, lines of the form
            source, tab, target.
        target_path: target sentences, one a line.

    Returns:
        An iterable of (source, target), which can be iterated over again and again. Empty lines
        are kept: `TokenStore.build` counts and drops them.

    Raises:
        CorpusError: while iterating, if a file cannot be read, is not UTF-8, or holds another
            number of lines than the other one, or a line is longer than 1 MiB, or a TSV line has
            not two fields. The message names file and line.
    """
    if target_path is None:
        return _TabSeparated(Path(source_path))
    return _LineAligned(Path(source_path), Path(target_path))


class _LineAligned:
    def __init__(self, source_path: Path, target_path: Path) -> None:
        self.source_path = source_path
        self.target_path = target_path

    def __iter__(self) -> Iterator[Pair]:
        sources, targets = read_lines(self.source_path), read_lines(self.target_path)
        for aligned in itertools.count():
            source, target = next(sources, None), next(targets, None)
            if source is not None and target is not None:
                yield source, target
            elif source is None and target is None:
                return
            else:
                source_count = aligned + (source is not None) + sum(1 for _ in sources)
                target_count = aligned + (target is not None) + sum(1 for _ in targets)
                raise CorpusError(
                    "line-aligned files must have equally many lines. Received: "
                    f"{self.source_path} with {source_count:,} and "
                    f"{self.target_path} with {target_count:,}"
                )


class _TabSeparated:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), start=1):
            fields = line.split("\t")
            if len(fields) != 2:
                raise CorpusError(
                    f"{self.path}, line {number:,}: a line must be source, tab, target. "
                    f"Received: {len(fields)} fields"
                )
            yield fields[0], fields[1]


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a UTF-8 file, plain or gzipped, without their ends.

    Raises:
        CorpusError: if the file cannot be read, is not UTF-8 or has a line longer than 1 MiB.
    """
    path = Path(path)
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(_bounded_lines(file, path), start=1):
                yield _text(line, number, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, after line {number:,}: damaged gzip file: {error}") from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_standard_input() -> Iterator[str]:
    """Lines of standard input, without their ends, as they come.

    Raises:
        CorpusError: If a line is not UTF-8 or is longer than 1 MiB.
    """
    stdin = sys.stdin  # Held: Python aborts if it is closed while a thread waits for its next line.
    for number, line in enumerate(_bounded_lines(stdin.buffer, "standard input"), start=1):
        yield _text(line, number, "standard input")


def _text(line: bytes, number: int, name: str | Path) -> str:
    """The text of a line without its end; without a byte order mark if it is the first line."""
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        return line.removesuffix(b"\r\n").removesuffix(b"\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name}, line {number:,}: text must be UTF-8. "
            f"Received: byte 0x{line[error.start]:02x} at column {error.start + 1}"
        ) from None


def _bounded_lines(file: BinaryIO, name: str | Path) -> Iterator[bytes]:
    """Lines with their ends, each read only as far as a line may go."""
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise CorpusError(
                f"{name}, line {number:,}: a line must have at most {_LONGEST_LINE:,} bytes. "
                "Received: a longer one"
            )
        if not line:
            return
        yield line


def _open(path: Path) -> BinaryIO:
    """Open for reading bytes, by what the file holds and not by what it is called."""
    file = path.open("rb")
    return gzip.open(file) if file.peek(2)[:2] == _GZIP_MAGIC else file  # type: ignore[return-value]
