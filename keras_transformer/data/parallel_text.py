"""Reads sentence pairs from lines, tables, JSON lines, Parquet, TMX, XLIFF and PO files."""

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_transformer._files import as_line
from keras_transformer.data.corpus import CorpusError, Pair, extra, open_text, read_lines, suffix_of

Languages = tuple[str | None, str | None]
# The place of a row, such as "line 7", and its cells by the name or the number of their column.
Row = tuple[str, dict[str, Any]]

_NUMBERS = ("1", "2")
_JSON = (".json", ".jsonl", ".ndjson")
_XML = (".tmx", ".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff", ".xml")
# Names of columns that are no languages.
_SOURCES = ("source", "src", "sentence")
_TARGETS = ("target", "tgt", "trg", "translation")
_SAMPLED_ROWS = 1_000
# Bounds of memory: for a PO file, which is read whole, and for a unit of XML.
_MOST_PO_BYTES = 256 * 1024 * 1024
_MOST_UNIT_BYTES = 16 * 1024 * 1024
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# Text outside the inline elements of TMX and XLIFF that contain code of the document.
_TEXT = (
    ".//text()[not(ancestor::*[contains('|bpt|ept|it|ph|ut|', concat('|', local-name(), '|'))])]"
)


def read_parallel(
    source_path: str | Path,
    target_path: str | Path | None = None,
    languages: Languages = (None, None),
) -> Iterable[Pair]:
    """Reads parallel text from two line-aligned files, or from one file with both sides.

    The suffix of one file tells its format: `.csv`; `.jsonl`, `.ndjson` or `.json` (JSON lines);
    `.parquet`; `.tmx`; `.xlf`, `.xliff`, `.sdlxliff`, `.mqxliff` or `.mxliff` (XLIFF); `.xml` (TMX
    or XLIFF); `.po`. Any other file is a TSV file. All but Parquet may be compressed with gzip, xz,
    bzip2 or zstd. The sides are found by the languages, or by names such as source and target, in a
    header, JSON, Parquet or TMX. A table without such a header must have two columns.

    A line break inside a sentence becomes a space. The required memory does not depend on the size
    of a file, except for PO files of up to 256 MiB.

    >>> pairs = read_parallel("train.en.gz", "train.de.gz")
    >>> pairs = read_parallel("memory.tmx", languages=("en", "de"))

    Args:
        source_path: File with one source sentence per line, or file with both sides.
        target_path: File with one target sentence per line. Defaults to None.
        languages: Codes of the languages, needed if a file has more than two. Defaults to unknown.

    Returns:
        An iterable of (source, target) pairs that can be iterated over repeatedly. Pairs with an
        empty, missing or unfinished side are included: `TokenStore.build` drops and counts them.

    Raises:
        CorpusError: While iterating, if a file cannot be read or is malformed, if two files have
            different numbers of lines, or if the columns are not clear.
    """
    return _ParallelText(Path(source_path), target_path, languages)


@dataclass
class Rows:
    """The (source, target) pairs of pairs, or of dicts as a row of a Hugging Face dataset is.

    The sides of dicts are found as in a file (see `read_parallel`).
    """

    rows: Iterable[Any]
    languages: Languages = (None, None)

    def __iter__(self) -> Iterator[Pair]:
        for row in self.rows:
            if isinstance(row, dict):
                sides = _sides(row)
                if (names := _choose([*sides], self.languages)) is None:
                    raise CorpusError(f"give two languages. Received: columns {', '.join(sides)}")
                row = [sides[name] or "" for name in names]
            source, target = row
            yield source, target


@dataclass
class _ParallelText:
    source_path: Path
    target_path: str | Path | None
    languages: Languages

    def __iter__(self) -> Iterator[Pair]:
        if self.target_path is None:
            return _both_sides(self.source_path, self.languages)
        return _line_aligned(self.source_path, self.target_path)


def _line_aligned(source_path: Path, target_path: str | Path) -> Iterator[Pair]:
    counts = [0, 0]
    for source, target in itertools.zip_longest(read_lines(source_path), read_lines(target_path)):
        counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
        if counts[0] == counts[1]:
            yield source, target
    if counts[0] != counts[1]:
        raise CorpusError(
            "line-aligned files must have the same number of lines. Received: "
            f"{source_path} with {counts[0]:,} and {target_path} with {counts[1]:,} lines"
        )


def _both_sides(path: Path, languages: Languages) -> Iterator[Pair]:
    columns = find_columns(path, languages)
    rows, keys, names = _reader(path)(path), [*_NUMBERS], [*_NUMBERS]
    if columns != _NUMBERS and _reader(path) is _table:
        header = next(rows)[1]
        names = [next(key for key in header if header[key] == column) for column in columns]
        keys = [*header]
    for place, row in rows:
        if keys != [*row]:
            keys = [*row]
            names = [_match(column, keys) or column for column in columns]
        cells = [row.get(name) or "" for name in names]
        if wrong := [cell for cell in cells if not isinstance(cell, str)]:
            raise CorpusError(f"{path}, {place}: no text. Received: {wrong[0]!r:.40}")
        source, target = (as_line(cell) if "\n" in cell else cell for cell in cells)
        yield source, target


def language_of(name: str) -> str | None:
    """Returns the standard code if a name is that of a language, such as de, pt_BR or zho_Hans.

    Three letters alone are no language here: txt and raw are codes too.
    """
    from langcodes import standardize_tag, tag_is_valid

    return standardize_tag(name) if len(name) != 3 and tag_is_valid(name) else None


def find_columns(path: Path, languages: Languages) -> tuple[str, str]:
    """Finds the columns of source and target by the languages, or by names such as src and tgt.

    Returns the numbers ("1", "2") for a table of two columns without such a header.

    Raises:
        CorpusError: If the columns are not clear. The message shows them.
    """
    rows = [row for _, row in itertools.islice(_reader(path)(path), _SAMPLED_ROWS)]
    header = rows[0] if rows and _reader(path) is _table else {}
    keys = [*dict.fromkeys(itertools.chain(*rows))]
    rows = rows[bool(header) :] or rows
    cells = {key: " ".join(str(row.get(key) or "")[:200] for row in rows) for key in keys}
    # Texts have more different words than licences. Scores and numbers have none.
    letter = re.compile(r"[^\W\d_]")
    words = {key: len({*filter(letter.search, cells[key].split())}) for key in keys}
    texts = [key for key in keys if words[key] or not cells[key].strip() or len(keys) == 2]
    if chosen := _choose([header.get(key, key) for key in texts], languages):
        return chosen
    if not keys or len(header) == 2:
        return _NUMBERS
    best = ",".join(sorted(sorted(keys, key=lambda key: -words[key])[:2]))
    shown = ", ".join(f"{key} ({as_line(cells[key][:20]).strip()})" for key in keys)
    advice = "give two languages, and name the columns by them"
    if len(header) == 1:
        advice = "give the file with the translations too"
    elif header:
        advice += f" in a first line, or keep two (of TSV: `cut -f {best}`)"
    raise CorpusError(f"{path}: which columns are source and target? {shown}: {advice}")


def _choose(names: list[str], languages: Languages) -> tuple[str, str] | None:
    """Returns the names of the two sides, or None if they are not clear."""
    codes = [name for name in names if language_of(name)]
    wanted = codes if len(codes) == 2 and languages == (None, None) else languages
    source, target = (name and _match(name, names) for name in wanted)
    if source and target and source != target:
        return source, target
    first, second = ([x for x in names if x.lower() in known] for known in (_SOURCES, _TARGETS))
    return (first[0], second[0]) if first and second else None


def _match(column: str, names: list[str]) -> str | None:
    """Returns the name that a column has in a row, in another case or with a region, or None."""
    equal = [name for name in names if name.lower() == column.lower()]
    if not equal and (code := language_of(column)):
        language = code.partition("-")[0]
        equal = [x for x in names if (language_of(x) or "").partition("-")[0] == language]
    return equal[0] if equal else None


def _reader(path: Path) -> Callable[[Path], Iterator[Row]]:
    """Returns the function that yields the rows of a file."""
    readers = {".parquet": _parquet, ".po": _messages}
    readers |= {**dict.fromkeys(_JSON, _json_lines), **dict.fromkeys(_XML, _xml_units)}
    return readers.get(suffix_of(path), _table)


def _table(path: Path) -> Iterator[Row]:
    names: list[str] = []
    for number, cells in _cells(path):
        names = names or [f"{x + 1}" for x in range(len(cells))]
        if cells and len(cells) != len(names):
            rule = f"a row must have as many columns as the first, {len(names)}"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {len(cells)}")
        if cells:
            yield f"line {number:,}", dict(zip(names, cells, strict=True))


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    head = [*itertools.islice(read_lines(path), 100)]
    delimiter = "\t"
    if suffix_of(path) == ".csv":
        delimiter = max("\t,;", key=lambda x: _regular_rows(head, x))
    elif not _has_quoted_cells("\n".join(head)):
        yield from enumerate((line.split("\t") for line in read_lines(path)), start=1)
        return
    lines = (f"{line}\n" for line in read_lines(path))
    rows, start = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        for row in rows:
            yield start, row
            start = rows.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}, line {start:,}: {error}") from None


def _has_quoted_cells(text: str) -> bool:
    """Returns whether all quotes of a TSV file are around cells, or doubled inside."""
    rest = re.sub(r'(?m)(?:^|(?<=\t))"(?:[^"]|"")*"(?=\t|$)', "", text)
    return text != rest and '"' not in rest and ('""' in text or not rest.strip())


def _regular_rows(lines: list[str], delimiter: str) -> int:
    with suppress(csv.Error):
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        return sum(width == widths[0] > 1 for width in widths)
    return 0


def _sides(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the sides of a row of a Hugging Face dataset, which may be in one field."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            if line:
                yield f"line {number:,}", _sides(json.loads(line))
        except (ValueError, RecursionError, AttributeError):
            rule = "a line must be a JSON object (`jq -c '.[]'` makes lines of a JSON array)"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {line[:40]!r}") from None


def _parquet(path: Path) -> Iterator[Row]:
    try:
        with extra("pyarrow.parquet", path).ParquetFile(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(1_024))
            for number, row in enumerate(itertools.chain.from_iterable(batches), start=1):
                yield f"row {number:,}", _sides(row)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors.
        raise CorpusError(f"{path}: {as_line(str(error))}") from None


def _messages(path: Path) -> Iterator[Row]:
    """Yields the messages of a PO file. A fuzzy translation counts as missing."""
    parse = extra("translate.storage.pypo", path).pofile.parsestring
    with open_text(path) as file:
        content = file.read(_MOST_PO_BYTES + 1)
    if len(content) > _MOST_PO_BYTES:
        raise CorpusError(f"{path}: a PO file must have at most {_MOST_PO_BYTES:,} bytes")
    try:
        units = parse(content).units
    except ValueError as error:
        advice = "`msgconv -t UTF-8` converts other encodings"
        raise CorpusError(f"{path}: {as_line(str(error)).strip()}; {advice}") from None
    for number, unit in enumerate(units, start=1):
        if unit.istranslatable():
            target = str(unit.target) if unit.istranslated() else ""
            yield f"message {number:,}", {"source": str(unit.source), "target": target}


def _xml_units(path: Path) -> Iterator[Row]:
    """Yields the units of TMX and XLIFF. Opens no other file, and expands no entities."""
    etree = extra("lxml.etree", path)
    safe = {"resolve_entities": False, "load_dtd": False, "no_network": True, "huge_tree": False}
    tags = ("{*}tu", "{*}trans-unit", "{*}segment")
    parser = etree.XMLPullParser(tag=tags, remove_comments=True, remove_pis=True, **safe)
    size = 0
    try:
        with open_text(path) as file:
            while chunk := file.read(2**16):
                parser.feed(chunk)
                size += len(chunk)
                for _, unit in parser.read_events():
                    place, size = f"line {unit.sourceline:,}", 0
                    if next(unit.iter(etree.Entity), None) is not None:
                        raise CorpusError(f"{path}, {place}: an entity that XML does not define")
                    yield place, _unit_row(unit)
                    unit.clear()
                    for element in (unit, *unit.iterancestors()):
                        while element.getprevious() is not None:
                            del element.getparent()[0]
                if size > _MOST_UNIT_BYTES:
                    raise CorpusError(f"{path}: a unit has more than {_MOST_UNIT_BYTES:,} bytes")
            parser.close()
    except etree.XMLSyntaxError as error:
        raise CorpusError(f"{path}, line {error.lineno:,}: {as_line(error.msg)}") from None


def _unit_row(unit: Any) -> dict[str, str]:
    """Returns the text of a unit by language, or as source and target if XLIFF names only one."""
    if unit.tag.endswith("tu"):
        sides = {x.get(_XML_LANG, x.get("lang", "")): x.find("{*}seg") for x in unit.iter("{*}tuv")}
    else:
        first = unit.xpath("string(ancestor::*/@source-language | ancestor::*/@srcLang)")
        second = unit.xpath("string(ancestor::*/@target-language | ancestor::*/@trgLang)")
        names = (first, second) if first and second and first != second else ("source", "target")
        source, target = unit.find("{*}source"), unit.find("{*}target")
        states = [x.get("state", "") for x in (unit, target) if x is not None]
        is_unfinished = any(x.startswith(("new", "initial", "needs-")) for x in states)
        sides = dict(zip(names, (source, None if is_unfinished else target), strict=True))
    return {key: "" if x is None else "".join(x.xpath(_TEXT)) for key, x in sides.items()}
