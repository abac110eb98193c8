"""Reads sentence pairs from lines, tables, JSON lines, Parquet, TMX, XLIFF and PO files."""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from keras_transformer._files import as_line
from keras_transformer.data.corpus import (
    COMPRESSED,
    CorpusError,
    Pair,
    extra,
    open_text,
    read_lines,
)

Columns = tuple[str | int, str | int]
Languages = tuple[str | None, str | None]
# The cells of a row by column: its number from 1 on, or its name in a header, JSON or XML.
Row = dict[Any, Any]

_KINDS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_KINDS |= {".parquet": "parquet", ".po": "po", ".pot": "po"}
_KINDS |= dict.fromkeys((".tmx", ".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff"), "xml")
# Names of columns that do not say a language.
_SOURCES = ("source", "src", "sentence", "msgid")
_TARGETS = ("target", "tgt", "trg", "translation", "msgstr")
_SAMPLED_ROWS = 1_000
# Bounds the memory of a file that is not read as a stream, and of one unit of XML.
_MOST_PO_BYTES = 256 * 1024 * 1024
_MOST_UNIT_BYTES = 16 * 1024 * 1024
# Inline elements of TMX and XLIFF whose content is code of the document, not text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
# States of XLIFF in which a target is no translation yet.
_UNFINISHED = ("new", "needs-translation", "needs-adaptation", "needs-l10n", "initial")
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def read_parallel(
    source_path: str | Path,
    target_path: str | Path | None = None,
    columns: Columns | None = None,
    languages: Languages = (None, None),
) -> Iterable[Pair]:
    r"""Reads parallel text from two line-aligned files, or from one file that has both sides.

    The suffix tells the format of one file: `.csv`; `.jsonl`, `.ndjson` and `.json` (JSON lines);
    `.parquet`; `.tmx`; `.xlf`, `.xliff`, `.sdlxliff`, `.mqxliff` and `.mxliff` (XLIFF); `.po`. Any
    other file is a TSV file. Each file but Parquet may be compressed (gzip, xz, bzip2, zstd).

    Lines end with "\n" or "\r\n". Unicode's other line separators do not end a line. A byte order
    mark is skipped. A line break inside a sentence becomes a space. Memory does not depend on the
    size of the file, except for PO files, which may have 256 MiB.

    Example:

    >>> for source, target in read_parallel("train.en.gz", "train.de.gz"):
    ...     print(source, "=", target)
    >>> pairs = read_parallel("memory.tmx", languages=("en", "de"))
    >>> pairs = read_parallel("scored.tsv", columns=(2, 3))

    Args:
        source_path: File with one source sentence per line or, if `target_path` is None, file with
            both sides.
        target_path: File with one target sentence per line. Defaults to None.
        columns: The columns of source and target in one file: numbers from 1 on in a table without
            header, names in a header, JSON or Parquet, or the languages in TMX and XLIFF. Defaults
            to the two columns of a TSV file, and elsewhere to those that `find_columns` finds.
        languages: Codes of the languages, by which columns are found. Defaults to unknown.

    Returns:
        An iterable of (source, target) pairs that can be iterated over repeatedly. Pairs with an
        empty side are included, as are missing and unfinished translations of TMX, XLIFF and PO.
        `TokenStore.build` drops and counts such pairs.

    Raises:
        CorpusError: While iterating, if a file cannot be read, is not UTF-8 or is malformed, if a
            line is longer than 1 MiB, if two files have different numbers of lines, or if a row
            does not have the columns.
    """
    return _ParallelText(Path(source_path), target_path, columns, languages)


@dataclass
class _ParallelText:
    source_path: Path
    target_path: str | Path | None
    columns: Columns | None
    languages: Languages

    def __iter__(self) -> Iterator[Pair]:
        path = self.source_path
        if self.target_path is not None:
            yield from self._line_aligned(self.target_path)
        elif self.columns is None and kind_of(path) == "tsv" and _is_narrow(path):
            yield from self._tab_separated()
        else:
            yield from self._chosen_columns()

    def _line_aligned(self, target_path: str | Path) -> Iterator[Pair]:
        counts = [0, 0]
        sides = read_lines(self.source_path), read_lines(target_path)
        for source, target in itertools.zip_longest(*sides):
            counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
            if counts[0] == counts[1]:
                yield source, target
        if counts[0] != counts[1]:
            raise CorpusError(
                "line-aligned files must have the same number of lines. Received: "
                f"{self.source_path} with {counts[0]:,} and {target_path} with {counts[1]:,} lines"
            )

    def _tab_separated(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.source_path), start=1):
            source, *fields = line.split("\t")
            if len(fields) != 1:
                raise CorpusError(
                    f"{self.source_path}, line {number:,}: a line must have a source, a tab and a "
                    f"target. Received: {1 + len(fields)} fields"
                )
            yield source, fields[0]

    def _chosen_columns(self) -> Iterator[Pair]:
        path, matched = self.source_path, cache(_match)
        columns = self.columns or find_columns(path, self.languages)
        for place, row in _rows(path, has_header=isinstance(columns[0], str)):
            names = [matched(column, tuple(row)) for column in columns]
            if None in names and kind_of(path) != "xml":  # A unit may lack a translation.
                received, missing = ", ".join(map(str, row)), columns[names.index(None)]
                raise CorpusError(f"{path}, {place}: no column {missing}. Received: {received}")
            cells = ["" if row.get(name) is None else row[name] for name in names]
            if wrong := [cell for cell in cells if not isinstance(cell, str)]:
                received = repr(wrong[0])[:40]
                raise CorpusError(f"{path}, {place}: text is needed. Received: {received}")
            yield as_line(cells[0]), as_line(cells[1])


def kind_of(path: Path) -> str:
    """Returns the format of a file with both sides: csv, tsv, json, parquet, xml or po."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return _KINDS.get(next((x for x in reversed(suffixes) if x not in COMPRESSED), ""), "tsv")


def _is_narrow(path: Path) -> bool:
    return next(read_lines(path), "").count("\t") < 2


def language_of(name: str) -> str | None:
    """Returns the standard code if a name is that of a language, such as de, pt_BR or zho_Hans.

    Three letters alone are no language here: txt and raw are codes too.
    """
    from langcodes import standardize_tag, tag_is_valid

    code = r"[A-Za-z]{2}([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|\d{3}))*|[a-z]{3}[-_][A-Z][a-z]{3}"
    is_code = re.fullmatch(code, name, re.ASCII) and tag_is_valid(name)
    return standardize_tag(name) if is_code else None


def find_columns(path: Path, languages: Languages = (None, None)) -> Columns:
    """Finds the columns of source and target by the languages, or by names such as src and tgt.

    In a table of two columns without such a header, they are 1 and 2.

    Raises:
        CorpusError: If the columns are not clear. The message shows the columns.
    """
    rows = [row for _, row in itertools.islice(_rows(path, has_header=False), _SAMPLED_ROWS)]
    is_table = kind_of(path) in ("csv", "tsv")
    header, body = (rows[:1], rows[1:] or rows) if is_table else ([], rows)
    cells: dict[Any, list[str]] = {}
    for row in body:
        for name, cell in row.items():
            cells.setdefault(name, []).append("" if cell is None else str(cell))
    letters = {name: sum(map(str.isalpha, "".join(cells[name]))) for name in cells}
    texts = [name for name in cells if letters[name] or not any(cells[name])]  # not numbers
    if columns := _choose([header[0][x] if header else x for x in texts], languages):
        return columns
    if header and len(cells) == 2:
        return 1, 2
    best = sorted(letters, key=lambda name: -letters[name])[:2]
    shown = ", ".join(f"{name} ({as_line(x[0])[:20]})" for name, x in cells.items())
    chosen = ",".join(f"{name}" for name in letters if name in best)
    raise CorpusError(
        f"{path} has {len(cells)} columns: {shown}. Choose source and target, such as --columns "
        f"{chosen}, or columns: [{chosen}] in a recipe"
    )


def _choose(names: list[str], languages: Languages) -> Columns | None:
    """Returns the names of the two sides, or None if they are not clear."""
    found = [language and _match(language, tuple(names)) for language in languages]
    codes = [name for name in names if language_of(name)]
    if len(codes) == 2:  # One given language, or none, is enough.
        for pair in (codes, codes[::-1]):
            sides = zip(languages, found, pair, strict=True)
            if all(language is None or name == code for language, name, code in sides):
                return pair[0], pair[1]
    elif found[0] and found[1] and found[0] != found[1]:
        return found[0], found[1]
    first, second = ([x for x in names if x.lower() in known] for known in (_SOURCES, _TARGETS))
    return (first[0], second[0]) if first and second else None


def _match(column: str | int, names: tuple[Any, ...]) -> Any:
    """Returns the name that a column has in a row, or None. A language matches its regions."""
    from langcodes import Language, tag_is_valid

    if column in names or isinstance(column, int):
        return column if column in names else None
    texts = [name for name in names if isinstance(name, str)]
    equal = [name for name in texts if name.lower() == column.lower()]
    if not equal and tag_is_valid(column):
        wanted = Language.get(column).language
        codes = [name for name in texts if tag_is_valid(name)]
        equal = [name for name in codes if Language.get(name).language == wanted]
    return equal[0] if equal else None


def _rows(path: Path, has_header: bool) -> Iterator[tuple[str, Row]]:
    """Yields the rows of a file by column, each after its place, such as "line 7"."""
    kind = kind_of(path)
    if kind in ("csv", "tsv"):
        return _table(path, has_header)
    return {"json": _json_lines, "parquet": _parquet, "xml": _xml_units, "po": _po}[kind](path)


def _table(path: Path, has_header: bool) -> Iterator[tuple[str, Row]]:
    names: list[Any] = []
    for place, cells in _cells(path):
        if cells in ([], [""]):
            continue
        if not names:
            names = cells if has_header else [*range(1, len(cells) + 1)]
            if has_header:
                continue
        if len(cells) != len(names):
            rule = f"a row must have as many columns as the first: {len(names)}"
            raise CorpusError(f"{path}, {place}: {rule}. Received: {len(cells)}")
        yield place, dict(zip(names, cells, strict=True))


def _cells(path: Path) -> Iterator[tuple[str, list[str]]]:
    delimiter, is_quoted = dialect_of(path)
    lines = read_lines(path)
    if not is_quoted:
        for number, line in enumerate(lines, start=1):
            yield f"line {number:,}", line.split(delimiter)
        return
    rows = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for row in rows:
            yield f"line {start:,}", row
            start = rows.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}, line {start:,}: {error}") from None


def dialect_of(path: Path) -> tuple[str, bool]:
    """Returns the delimiter of a table, and whether cells can be in quotes.

    In a TSV file, a quote is a character like others, unless all quotes are those that a program
    writes around cells, and doubles inside.
    """
    head = [*itertools.islice(read_lines(path), 100)]
    if kind_of(path) == "tsv":
        text, cell = "\n".join(head), r'(?:^|(?<=\t))"((?:[^"]|"")*)"(?=\t|$)'
        cells = re.findall(cell, text, re.MULTILINE)
        is_all = len(cells) == sum(line.count("\t") + 1 for line in head)
        has_sign = is_all or any('""' in x or "\t" in x or "\n" in x for x in cells)
        return "\t", has_sign and '"' not in re.sub(cell, "", text, flags=re.MULTILINE)

    def regular_rows(delimiter: str) -> int:
        widths = [len(row) for row in csv.reader(head, delimiter=delimiter)]
        return sum(width == widths[0] > 1 for width in widths)

    return max("\t,;", key=regular_rows), True


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(read_lines(path), start=1):
        place = f"line {number:,}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            rule = "a line must be a JSON object (`jq -c '.[]'` makes lines of a JSON array)"
            raise CorpusError(f"{path}, {place}: {rule}. Received: {line[:40]}")
        yield place, _translation(row)


def _translation(row: Row) -> Row:
    """Returns the sides of a row that has them in one field, as datasets of Hugging Face do."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    parquet = extra("pyarrow.parquet", path)
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            is_nested = "translation" in file.schema_arrow.names
            columns = ["translation"] if is_nested else None
            for batch in file.iter_batches(1_024, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number:,}", _translation(row)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise CorpusError(f"{path}, after row {number:,}: {as_line(str(error))}") from None


def _po(path: Path) -> Iterator[tuple[str, Row]]:
    pypo = extra("translate.storage.pypo", path)
    with open_text(path) as file:
        content = file.read(_MOST_PO_BYTES + 1)
    if len(content) > _MOST_PO_BYTES:
        raise CorpusError(f"{path}: a PO file must have at most {_MOST_PO_BYTES:,} bytes")
    try:
        units = pypo.pofile.parsestring(content).units
    except UnicodeError as error:
        advice = f"A command that converts it: msgconv -t UTF-8 {path} > {path}.utf8.po"
        raise CorpusError(f"{path}: {error}. {advice}") from None
    except ValueError as error:
        raise CorpusError(f"{path}: {as_line(str(error))}") from None
    for number, unit in enumerate(units, start=1):
        if unit.istranslatable():
            target = str(unit.target) if unit.istranslated() else ""
            yield f"message {number:,}", {"source": str(unit.source), "target": target}


class _BoundedReader:
    """A file that gives at most 16 MiB between two units of XML, which bounds the memory."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self.since_unit = file, path, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.since_unit += len(data)
        if self.since_unit > _MOST_UNIT_BYTES:
            rule = f"a translation unit must have at most {_MOST_UNIT_BYTES:,} bytes"
            raise CorpusError(f"{self._path}: {rule}. Received: more")
        return data


def _xml_units(path: Path) -> Iterator[tuple[str, Row]]:
    """Yields the units of TMX and XLIFF. Loads no DTD and no other file, expands no entities."""
    etree = extra("lxml.etree", path)
    names = ("{*}tu", "{*}trans-unit", "{*}segment")
    safe = {"resolve_entities": False, "load_dtd": False, "no_network": True, "huge_tree": False}
    count = 0
    with open_text(path) as file:
        reader = _BoundedReader(file, path)
        events = etree.iterparse(reader, tag=names, remove_comments=True, remove_pis=True, **safe)
        try:
            for _, unit in events:
                count, reader.since_unit = count + 1, 0
                place = f"line {unit.sourceline:,}"
                if next(unit.iter(etree.Entity), None) is not None:
                    raise CorpusError(f"{path}, {place}: entities other than XML's are not read")
                yield place, _unit_row(unit)
                unit.clear()
                while unit.getprevious() is not None:
                    del unit.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise CorpusError(f"{path}, line {error.lineno:,}: {as_line(error.msg)}") from None
    if not count:
        raise CorpusError(f"{path} has no units of TMX (tu) or XLIFF (trans-unit, segment)")


def _unit_row(unit: Any) -> Row:
    """Returns the text of a unit by language, or as "source" and "target" if XLIFF tells none."""
    if unit.tag.endswith("tu"):
        variants = unit.iterfind("{*}tuv")
        return {x.get(_XML_LANG) or x.get("lang"): _text(x.find("{*}seg")) for x in variants}
    first = unit.xpath("string(ancestor::*/@source-language | ancestor::*/@srcLang)")
    second = unit.xpath("string(ancestor::*/@target-language | ancestor::*/@trgLang)")
    if not first or not second or first == second:
        first, second = "source", "target"
    target = unit.find("{*}target")
    states = {x.get("state") for x in (unit, target) if x is not None}
    is_finished = states.isdisjoint(_UNFINISHED)
    return {first: _text(unit.find("{*}source")), second: _text(target) if is_finished else ""}


def _text(element: Any) -> str:
    """Returns the text of an element, without the code of inline elements."""
    if element is None:
        return ""
    parts = [element.text or ""]
    for child in element:
        if child.tag.rpartition("}")[2] not in _CODES:
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)
