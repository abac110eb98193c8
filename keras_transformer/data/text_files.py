"""Reads and checks the lines and texts of files and standard input, and downloads files."""

import bz2
import codecs
import functools
import gzip
import io
import itertools
import lzma
import queue
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote as quoted
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import quote
from urllib.request import urlopen

from keras_transformer._files import atomic_write, check_sha256, keras_home, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.errors import UserError, imported

Pair = tuple[str, str]
Item = TypeVar("Item")

# The suffixes of compressed files.
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
# The program that converts files without lines of text, by the suffixes of the files.
_PROGRAMS = {
    ".xlsx .xls .ods": "soffice --headless --convert-to csv",
    ".docx .doc .odt .rtf .html": "soffice --headless --convert-to txt:Text",
    ".pdf": "pdftotext",
    ".zip": "unzip",
    ".7z": "7z x",
    ".tar .tgz .txz .tbz": "tar -xf",
    ".sgm": "> text.txt sed -n 's/<seg[^>]*> *//; s/ *<.seg>//p'",
    ".arrow": "python -c 'import datasets, sys; "
    'datasets.Dataset.from_file(sys.argv[1]).to_json("text.jsonl")\'',
}
# Text in files with these suffixes is seldom one sentence a line.
_STRUCTURED = (
    ".json .jsonl .ndjson .strings .srt .vtt .ass .po .pot .tmx .xlf .xliff .xml .yaml .yml "
    ".properties .resx .arb"
).split()
# What opens a compressed file, by a regular expression for its first bytes.
_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
    b"BZh[1-9]1AY&SY": bz2.open,
    b"\\(\xb5/\xfd": lambda file: io.BufferedReader(
        extra("pyarrow", file.name).input_stream(file, compression="zstd")
    ),
}
# A thousand times the bytes of a long sentence. The limit saves memory: a gzipped file of 1 MB can
# have a line of 1 GB, and encoding keeps several copies of a line in memory.
_LONGEST_LINE = 1024 * 1024
# How long `available_chunks` waits for further items: too short for a person to notice.
_PATIENCE_SECONDS = 0.05
_SILENCE_SECONDS = 60.0  # of a server


class CorpusError(UserError, ValueError):
    """Raised if a text file is missing, damaged, not UTF-8 or not aligned with the other file."""


@dataclass
class Repeatable(Generic[Item]):
    """The items of a generator that begins anew, so that they can be iterated over repeatedly."""

    begin: Callable[[], Iterator[Item]]

    def __iter__(self) -> Iterator[Item]:
        return self.begin()


def read_lines(path: str | Path) -> Iterator[str]:
    """Reads the lines of a UTF-8 file, plain or compressed, without their line ends.

    gzip, xz, bzip2 and zstd are recognised by the content of the file. zstd needs pyarrow.

    Raises:
        CorpusError: If the file cannot be read, is not UTF-8 or has a line longer than 1 MiB.
    """
    with open_text(path) as file:
        yield from _lines(file, f"{path}")


def read_texts(path: Path, documents: str, part: slice | None = None) -> Iterator[tuple[str]]:
    """Yields the texts of a file for a language model, each as a tuple of one string.

    `documents` says what a document is: "lines", "paragraphs" (lines up to an empty one), or
    "files", whose texts are their lines. A text that ends with a line end goes on in the next one.
    With `part`, these are only some of the texts, such as the last 100 for `slice(-100, None)`.
    """
    texts = read_lines(path)
    if documents == "paragraphs":
        groups = itertools.groupby(texts, lambda line: bool(line.strip()))
        texts = ("\n".join(group) for has_text, group in groups if has_text)
    if part:
        count = sum(1 for _ in read_texts(path, documents))
        texts = itertools.islice(texts, *part.indices(count)[:2])
    if documents != "files":
        yield from zip(texts)
        return
    for text, following in itertools.pairwise(itertools.chain(texts, [None])):
        yield (f"{text}" if following is None else f"{text}\n",)


@contextmanager
def open_text(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a plain or compressed file, and turns errors of reading into `CorpusError`.

    Refuses files such as spreadsheets and archives, with the command that converts them.
    """
    suffix = suffix_of(path)
    if program := next((_PROGRAMS[x] for x in _PROGRAMS if suffix in x.split()), None):
        command = f"{program} {quoted(str(path))}"
        raise CorpusError(f"{path} has no lines of text. A command that converts it: {command}")
    try:
        with open(path, "rb") as raw:
            head = raw.peek(10)
            opener = next((_OPENERS[x] for x in _OPENERS if re.match(x, head)), None)
            yield opener(raw) if opener else raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorpusError(f"{path}: cannot be read: {reason}") from None


def beginning(items: Iterable[Item], most: int) -> list[Item]:
    """Returns the first items, at most `most`, and of long ones fewer."""
    found, size = [], 0
    for item in itertools.islice(items, most):
        found.append(item)
        if (size := size + len(str(item))) > _LONGEST_LINE:
            break
    return found


@functools.cache  # It is said once.
def tell_of_lines(path: str | Path) -> None:
    """Says on standard error that lines are taken as sentences, if that is unusual."""
    if suffix_of(path) in _STRUCTURED:
        print(f"notice: each line of {path} is taken as a sentence, as it is", file=sys.stderr)


def suffix_of(path: str | Path) -> str:
    """Returns the suffix of a file before it was compressed: ".tsv" for "a.TSV.gz"."""
    suffixes = [x.lower() for x in Path(path).suffixes if x.lower() not in COMPRESSED]
    return suffixes[-1] if suffixes else ""


def extra(module: str, path: str | Path) -> Any:
    """Imports a module that reads the file `path`, and that not every installation has."""
    return imported(module, "files", f"reading {path} needs")


def read_standard_input() -> Iterator[str]:
    """Reads the lines of standard input, as `read_lines` those of a file."""
    try:  # It is not closed: Python aborts if standard input is closed during a read.
        yield from _lines(sys.stdin.buffer, "standard input")
    except OSError as error:
        raise CorpusError(f"standard input cannot be read: {error.strerror or error}") from None


def _lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yields the lines of a file, without their line ends and without a byte order mark."""
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise CorpusError(
                f"{name}, line {number:,}: a line must have at most {_LONGEST_LINE:,} bytes. "
                "Received: a longer line"
            )
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            return
        text = line.removesuffix(b"\r\n").removesuffix(b"\n")
        try:
            if number == 1 and (line.count(0) > max(3, len(line) // 20) or b"\x1b$" in line):
                start = line.index(0 if 0 in line else b"\x1b")
                raise UnicodeDecodeError("utf-8", line, start, 1, "of UTF-16 or ISO 2022")
            yield text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number:,}: text must be UTF-8. Received: byte "
                f"0x{line[error.start]:02x} at column {error.start + 1}. {_advice(line, file)}"
            ) from None


def _advice(line: bytes, file: BinaryIO) -> str:
    """Returns what encoding a line that is no UTF-8 probably has, and what converts it."""
    from charset_normalizer import from_bytes

    data = line if file is sys.stdin.buffer else line + file.read(2**16)
    end = len(data) // 4 * 4 if 0 in data else data.rfind(b"\n") + 1  # of whole characters
    best = from_bytes(data[: end or None]).best()
    if best is None or best.encoding == "utf_8":
        return "The file is damaged, or not text"
    # Much text of Western Europe and Japan can be in several, and a few accents in nearly all.
    # iconv spells names with hyphens.
    has_few = 0 not in data and 0 < sum(byte > 127 for byte in data) < min(16, len(data) / 4)
    likely = ["cp1252"] * has_few + best.could_be_from_charset
    common: list[str] = [x for x in ("cp1252", "euc_jp") if x in likely]
    encoding = (common or [best.encoding])[0].upper().replace("_", "-")
    encoding = re.sub("(?<=UTF-16|UTF-32)-", "", encoding).replace("ISO2022", "ISO-2022")
    return f"It may be {encoding}, which this converts: iconv -f {encoding} -t UTF-8"


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

    def take() -> None:
        try:
            for item in items:
                arrived.put(item)
                if is_abandoned.is_set():
                    return
        except BaseException as error:
            errors.append(error)
        arrived.put(_END)

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
        with suppress(queue.Empty):
            arrived.get_nowait()  # The thread may wait for a free place.
    if errors:
        raise errors[0]


def download(name: str, folder_url: str, sha256: str) -> Path:
    """Downloads a file into the cache if the cache does not have the file.

    The cache is the folder `keras_transformer/<first 16 digits of the SHA-256>` in `KERAS_HOME`, by
    default in `~/.keras`. A file is moved into the cache after its download is complete and
    verified. Every call verifies the file in the cache, and downloads a damaged file again.
    (`keras.utils.get_file` has no timeout, and other processes see its incomplete file.)

    Raises `UserError` if the download fails, if the server is silent for a minute, or if the
    SHA-256 of the file is not `sha256` (64 lower-case hex digits).
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
                check_sha256(partial, sha256, name)
    except Exception as error:  # urllib and the system raise different errors
        advice = "for local files, use --data-dir, or set data.directory of the recipe"
        message = f"{url} cannot be fetched ({advice}): {error}"
        raise UserError(" ".join(message.split())) from error
    return path
