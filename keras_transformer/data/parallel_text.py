"""Reads sentence pairs from lines, tables, JSON lines, Parquet, TMX, XLIFF and PO files."""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from keras_transformer._files import as_line
from keras_transformer.data.corpus import (
    COMPRESSED,
    CorpusError,
    Pair,
    extra,
    open_text,
    read_lines,
)

Languages = tuple[str | None, str | None]
Row = dict[str, Any]  # the cells of a row, by the name or the number of their column

_NUMBERS = ("1", "2")
_XML = (".tmx", ".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff", ".xml")
# Names of columns that are no languages.
_SOURCES = ("source", "src", "sentence")
_TARGETS = ("target", "tgt", "trg", "translation")
_SAMPLED_ROWS = 1_000
# Bounds of memory: for a PO file, which is read whole, and for a unit of XML.
_MOST_PO_BYTES = 256 * 1024 * 1024
_MOST_UNIT_BYTES = 16 * 1024 * 1024
# Inline elements of TMX and XLIFF that contain code of the document instead of text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
# States of XLIFF in which a target is no translation yet.
_UNFINISHED = {"new", "initial", "needs-translation", "needs-adaptation", "needs-l10n"}
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def read_parallel(
    source_path: str | Path,
    target_path: str | Path | None = None,
    languages: Languages = (None, None),
) -> Iterable[Pair]:
    r"""Reads parallel text from two line-aligned files, or from one file with both sides.

    The suffix of one file tells its format: `.csv`; `.jsonl`, `.ndjson` or `.json` (JSON lines);
    `.parquet`; `.tmx`; `.xlf`, `.xliff`, `.sdlxliff`, `.mqxliff` or `.mxliff` (XLIFF); `.xml` (TMX
    or XLIFF); `.po`. Any other file is a TSV file. All but Parquet may be compressed with gzip, xz,
    bzip2 or zstd. The sides are found by the languages, or by names such as source and target, in a
    header, JSON, Parquet or TMX. A table without such a header must have two columns.

    Lines end with "\n" or "\r\n". Unicode's other line separators do not end a line. A byte order
    mark is skipped. A line break inside a sentence becomes a space. The required memory does not
    depend on the size of a file, except for PO files of up to 256 MiB.

    Example:

    >>> for source, target in read_parallel("train.en.gz", "train.de.gz"):
    ...     print(source, "=", target)
    >>> pairs = read_parallel("memory.tmx", languages=("en", "de"))

    Args:
        source_path: File with one source sentence per line, or file with both sides.
        target_path: File with one target sentence per line. Defaults to None.
        languages: Codes of the languages, needed if a file has more than two. Defaults to unknown.

    Returns:
        An iterable of (source, target) pairs that can be iterated over repeatedly. Pairs with an
        empty side are included, as are missing and unfinished translations of TMX, XLIFF and PO.
        `TokenStore.build` drops and counts such pairs.

    Raises:
        CorpusError: While iterating, if a file cannot be read, is not UTF-8 or is malformed, if a
            line is longer than 1 MiB, if two files have different numbers of lines, or if the
            columns are not clear.
    """
    return _ParallelText(Path(source_path), target_path, languages)


@dataclass
class _ParallelText:
    source_path: Path
    target_path: str | Path | None
    languages: Languages

    def __iter__(self) -> Iterator[Pair]:
        if self.target_path is not None:
            yield from self._line_aligned(self.target_path)
        elif names := find_columns(self.source_path, self.languages):
            yield from self._chosen_columns(names)
        else:
            yield from self._tab_separated()

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

    def _chosen_columns(self, columns: tuple[str, str]) -> Iterator[Pair]:
        path, matched = self.source_path, lru_cache(_match)
        for place, row in _rows(path, has_header=columns != _NUMBERS):
            names = [matched(column, tuple(row)) for column in columns]
            if None in names and kind_of(path) != "xml":  # A unit may lack a translation.
                received, missing = as_line(", ".join(row)), columns[names.index(None)]
                raise CorpusError(f"{path}, {place}: no column {missing}. Received: {received}")
            cells = [row[x] if x is not None and row[x] is not None else "" for x in names]
            if wrong := [cell for cell in cells if not isinstance(cell, str)]:
                raise CorpusError(f"{path}, {place}: no text. Received: {wrong[0]!r:.40}")
            yield as_line(cells[0]), as_line(cells[1])


def kind_of(path: Path) -> str:
    """Returns the format of a file with both sides: csv, tsv, json, parquet, xml or po."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = next((x for x in reversed(suffixes) if x not in COMPRESSED), "")
    if last in (".csv", ".parquet", ".po"):
        return last[1:]
    return "xml" if last in _XML else "json" if last in (".json", ".jsonl", ".ndjson") else "tsv"


def language_of(name: str) -> str | None:
    """Returns the standard code if a name is that of a language, such as de, pt_BR or zho_Hans.

    Three letters alone are no language here: txt and raw are codes too.
    """
    from langcodes import standardize_tag, tag_is_valid

    code = r"[A-Za-z]{2}([-_]([A-Za-z]{2}|[A-Z][a-z]{3}|\d{3}))*|[a-z]{3}[-_][A-Z][a-z]{3}"
    is_code = re.fullmatch(code, name, re.ASCII) and tag_is_valid(name)
    return standardize_tag(name) if is_code else None


def find_columns(path: Path, languages: Languages) -> tuple[str, str] | None:
    """Finds the columns of source and target by the languages, or by names such as src and tgt.

    Returns the numbers ("1", "2") for a table of two columns without such a header, but None for
    such a TSV file without quotes around cells.

    Raises:
        CorpusError: If the columns are not clear. The message shows them.
    """
    rows = [row for _, row in itertools.islice(_rows(path, has_header=False), _SAMPLED_ROWS)]
    is_tsv, is_table = kind_of(path) == "tsv", kind_of(path) in ("csv", "tsv")
    header = rows[0] if rows and is_table else {}
    rows = (header and rows[1:]) or rows
    keys = [*dict.fromkeys(itertools.chain(header, *rows))]
    cells = {key: "\n".join(str(row.get(key) or "")[:200] for row in rows) for key in keys}
    # Texts have more different words than licences. Scores and numbers have none.
    letter = re.compile(r"[^\W\d_]")
    words = {key: len({*filter(letter.search, cells[key].split())}) for key in keys}
    texts = [key for key in keys if words[key] or not cells[key].strip()]
    names = [header.get(key, key) for key in (keys if len(keys) == 2 else texts)]
    if chosen := _choose(names, languages):
        return chosen
    if not keys or (header and len(header) <= 2):
        return None if is_tsv and not _dialect(path)[1] else _NUMBERS
    best = sorted(keys, key=lambda key: -words[key])[:2]
    advice = "give the languages of two columns, as they are named here"
    if is_table:
        advice = "name two in a first line by their languages, such as en and de"
    if is_tsv:
        advice += f", or keep two with `cut -f {','.join(x for x in keys if x in best)}`"
    shown = ", ".join(f"{key} ({as_line(cells[key][:20]).strip()})" for key in keys)
    raise CorpusError(f"{path}: which columns are source and target? {shown}: {advice}")


def _choose(names: list[str], languages: Languages) -> tuple[str, str] | None:
    """Returns the names of the two sides, or None if they are not clear."""
    codes = [name for name in names if language_of(name)]
    wanted = codes if len(codes) == 2 and languages == (None, None) else languages
    source, target = (name and _match(name, tuple(names)) for name in wanted)
    if source and target and source != target:
        return source, target
    first, second = ([x for x in names if x.lower() in known] for known in (_SOURCES, _TARGETS))
    return (first[0], second[0]) if first and second else None


def _match(column: str, names: tuple[str, ...]) -> str | None:
    """Returns the name that a column has in a row, in another case or with a region, or None."""
    equal = [name for name in names if name.lower() == column.lower()]
    if not equal and (code := language_of(column)):
        language = code.partition("-")[0]
        equal = [x for x in names if (language_of(x) or "").partition("-")[0] == language]
    return equal[0] if equal else None


def _rows(path: Path, has_header: bool) -> Iterator[tuple[str, Row]]:
    """Yields the rows of a file by column, each after its place, such as "line 7"."""
    readers = {"json": _json_lines, "parquet": _parquet, "xml": _xml_units, "po": _messages}
    kind = kind_of(path)
    return readers[kind](path) if kind in readers else _table(path, has_header)


def _table(path: Path, has_header: bool) -> Iterator[tuple[str, Row]]:
    names: list[str] = []
    for number, cells in _cells(path):
        if not names:
            names = cells if has_header else [f"{x + 1}" for x in range(len(cells))]
            if has_header:
                continue
        if cells and len(cells) != len(names):
            rule = f"a row must have as many columns as the first, {len(names)}"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {len(cells)}")
        if cells:
            yield f"line {number:,}", dict(zip(names, cells, strict=True))


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    delimiter, is_quoted = _dialect(path)
    if not is_quoted:
        yield from enumerate((line.split(delimiter) for line in read_lines(path)), start=1)
        return
    lines = (f"{line}\n" for line in read_lines(path))
    rows, start = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        for row in rows:
            yield start, row
            start = rows.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}, line {start:,}: {error}") from None


def _dialect(path: Path) -> tuple[str, bool]:
    """Returns the delimiter of a table, and whether its cells may be in quotes.

    In a TSV file, they may be if all quotes are as programs write them: around a cell, and doubled
    inside. Otherwise, a quote is a character like others.
    """
    head = [*itertools.islice(read_lines(path), 100)]
    if kind_of(path) == "tsv":
        text = "\n".join(head)
        rest = re.sub(r'(?:^|(?<=\t))"(?:[^"]|"")*"(?=\t|$)', "", text, flags=re.MULTILINE)
        is_quoted = text != rest and '"' not in rest and ('""' in text or not rest.strip())
        return "\t", is_quoted

    def regular_rows(delimiter: str) -> int:
        with suppress(csv.Error):
            widths = [len(row) for row in csv.reader(head, delimiter=delimiter)]
            return sum(width == widths[0] > 1 for width in widths)
        return 0

    return max("\t,;", key=regular_rows), True


def _sides(row: Row) -> Row:
    """Returns the sides of a row of a Hugging Face dataset, which may be in one field."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line or "{}")
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            rule = "a line must be a JSON object (`jq -c '.[]'` makes lines of a JSON array)"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {line[:40]!r}")
        if line:
            yield f"line {number:,}", _sides(row)


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    numbers = itertools.count(1)
    try:
        with extra("pyarrow.parquet", path).ParquetFile(path) as file:
            wanted = [x for x in file.schema_arrow.names if x == "translation"] or None
            for batch in file.iter_batches(1_024, columns=wanted):
                for row in batch.to_pylist():
                    yield f"row {next(numbers):,}", _sides(row)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors.
        raise CorpusError(f"{path}, row {next(numbers):,}: {as_line(str(error))}") from None


def _messages(path: Path) -> Iterator[tuple[str, Row]]:
    """Yields the messages of a PO file. A fuzzy translation counts as missing."""
    parse = extra("translate.storage.pypo", path).pofile.parsestring
    with open_text(path) as file:
        content = file.read(_MOST_PO_BYTES + 1)
    try:
        if len(content) > _MOST_PO_BYTES:
            raise ValueError(f"a PO file must have at most {_MOST_PO_BYTES:,} bytes")
        units = parse(content).units
    except ValueError as error:
        advice = "`msgfmt --check` tells more, and `msgconv -t UTF-8` converts other encodings"
        raise CorpusError(f"{path}: {as_line(str(error)).strip()}; {advice}") from None
    for number, unit in enumerate(units, start=1):
        if unit.istranslatable():
            target = str(unit.target) if unit.istranslated() else ""
            yield f"message {number:,}", {"source": str(unit.source), "target": target}


def _xml_units(path: Path) -> Iterator[tuple[str, Row]]:
    """Yields the units of TMX and XLIFF. Opens no other file, and expands no entities."""
    etree = extra("lxml.etree", path)
    safe = {"resolve_entities": False, "load_dtd": False, "no_network": True, "huge_tree": False}
    tags = ("{*}tu", "{*}trans-unit", "{*}segment")
    parser = etree.XMLPullParser(tag=tags, remove_comments=True, remove_pis=True, **safe)
    size, unit = 0, None
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
    if unit is None:
        raise CorpusError(f"{path} has no units of TMX (tu) or XLIFF (trans-unit, segment)")


def _unit_row(unit: Any) -> Row:
    """Returns the text of a unit by language, or as source and target if XLIFF names only one."""
    if unit.tag.endswith("tu"):
        variants = unit.iterfind("{*}tuv")
        return {x.get(_XML_LANG, x.get("lang", "")): _text(x.find("{*}seg")) for x in variants}
    first = unit.xpath("string(ancestor::*/@source-language | ancestor::*/@srcLang)")
    second = unit.xpath("string(ancestor::*/@target-language | ancestor::*/@trgLang)")
    names = (first, second) if first and second and first != second else ("source", "target")
    source, target = unit.find("{*}source"), unit.find("{*}target")
    states = {x.get("state") for x in (unit, target) if x is not None}
    target = target if states.isdisjoint(_UNFINISHED) else None
    return dict(zip(names, (_text(source), _text(target)), strict=True))


def _text(element: Any) -> str:
    """Returns the text of an element, without the code of inline elements."""
    if element is None:
        return ""
    parts = [element.text or ""]
    for child in element:
        is_code = child.tag.rpartition("}")[2] in _CODES
        parts += ["" if is_code else _text(child), child.tail or ""]
    return "".join(parts)
