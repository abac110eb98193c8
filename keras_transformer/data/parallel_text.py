"""Reads sentence pairs from lines, tables, JSON lines, Parquet, TMX, XLIFF and PO files."""

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from keras_transformer._files import as_line, read_all
from keras_transformer.data.languages import closest_language, language_of
from keras_transformer.data.text_files import (
    CorpusError,
    Pair,
    Repeatable,
    beginning,
    extra,
    open_text,
    read_lines,
    suffix_of,
    tell_of_lines,
)

Languages = tuple[str | None, str | None]
SIDES = ("source", "target")
# The cells of a row by the name of their column.
Row = dict[str, Any]

# Names of columns that are no languages.
_SOURCES = ("source", "src", "sentence")
_TARGETS = ("target", "tgt", "trg", "translation")
_SAMPLED_ROWS = 1_000
_SAMPLED_CHARACTERS = 64 * 1024
_LETTER = re.compile(r"[^\W\d_]")
# A unit of XML must fit into memory.
_MOST_UNIT_BYTES = 16 * 1024 * 1024
# Text outside the inline elements of TMX and XLIFF that contain code of the document.
_TEXT = (
    ".//text()[not(ancestor::*[contains('|bpt|ept|it|ph|ut|', concat('|', local-name(), '|'))])]"
)
_PO_LINE = re.compile(r'\s*(#.*|(msg(ctxt|id|id_plural|str(\[\d+\])?)\s+)?"([^"\\]|\\.)*")?\s*')
# The states of a unit and of its target in XLIFF 1.2 and 2, and in memoQ's.
_STATE = "concat(@state, ' ', @*[local-name() = 'status'])"
_UNFINISHED = re.compile(r"\b(new|initial|needs-|Draft|Rejected|NotStarted|PartiallyEdited)")


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
    of a file, except for PO files.

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
    if target_path is None:
        return Repeatable(partial(_both_sides, Path(source_path), languages))
    return Repeatable(partial(_line_aligned, Path(source_path), target_path))


def read_rows(rows: Iterable[Any], languages: Languages) -> Iterator[Pair]:
    """Yields the (source, target) pairs of pairs, or of dicts such as a Hugging Face dataset has.

    The sides of dicts are found as in a file (see `read_parallel`).
    """
    for row in rows:
        if isinstance(row, dict):
            sides = _sides(row)
            if (names := _choose([*sides], languages)) is None:
                raise CorpusError(f"give two languages. Received: columns {', '.join(sides)}")
            row = [sides[closest_language(name, sides) or name] for name in names]
        pair = ["" if side is None else side for side in row]
        if isinstance(row, str) or len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            raise CorpusError(f"give (source, target) pairs. Received: {row!r:.80}")
        yield pair[0], pair[1]


@dataclass
class Corpora:
    """The pairs of several corpora, one after the other. A `TokenStore` knows where each ends.

    With the side "target" alone, the parts have the texts of a language model (see `read_texts`).
    """

    parts: Sequence[Iterable[Any]]
    sides: Sequence[str] = SIDES

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.parts)


def _line_aligned(*paths: str | Path) -> Iterator[Pair]:
    for path in paths:
        tell_of_lines(path)
    for source, target in itertools.zip_longest(*map(read_lines, paths)):
        if source is None or target is None:
            counts = (f"{path} with {sum(1 for _ in read_lines(path)):,}" for path in paths)
            rule = "line-aligned files must have the same number of lines"
            raise CorpusError(f"{rule}. Received: {' and '.join(counts)} lines")
        yield source, target


def _both_sides(path: Path, languages: Languages) -> Iterator[Pair]:
    columns, rows = columns_and_rows(path, languages)
    keys: list[str] = []
    for number, row in enumerate(rows, start=1):
        if keys != [*row]:
            keys = [*row]
            names = [closest_language(column, keys) or column for column in columns]
        cells = [row.get(name) or "" for name in names]
        if wrong := [cell for cell in cells if not isinstance(cell, str)]:
            raise CorpusError(f"{path}, row {number:,}: no text. Received: {wrong[0]!r:.40}")
        source, target = (as_line(cell).strip(" \t") for cell in cells)
        yield source, target


def columns_and_rows(path: Path, languages: Languages) -> tuple[tuple[str, str], Iterator[Row]]:
    """Returns the columns of source and target in a file with both sides, and its rows.

    The columns are found by the languages (see `closest_language`), or by names such as src and
    tgt. Those of a table without such a header are numbers. A column that is a language without
    region may have several names in the rows, such as en and en-GB. If the columns are not clear,
    raises `CorpusError`, whose message shows them.
    """
    read = _READERS.get(suffix_of(path)) or partial(_table, languages=languages)
    rows = read(path)
    head = beginning(rows, _SAMPLED_ROWS)
    names = [*dict.fromkeys(itertools.chain(*head))]
    if any(_column(x, names) not in (None, x) for x in languages if x):  # A nearer one may follow.
        names = [*dict.fromkeys(itertools.chain.from_iterable(read(path)))]
    columns = _choose(names, languages)
    ends = {row.get(x) for row in head for x in names[2:]}  # Delimiters at the end of all lines.
    if not names or (names[:2] == ["1", "2"] and not any(ends)):
        columns = ("1", "2")
    if columns is None:
        cells = {x: " ".join(str(row.get(x) or "") for row in head) for x in names}
        shown = ", ".join(f"{x} ({as_line(cells[x][:20]).strip()})" for x in names)
        advice = "give two languages"
        if len(names) == 1:
            advice = "give the file with the translations too"
        elif names[0] == "1":
            # Texts have more different words than licences. Scores and numbers have none.
            words = {x: len({*filter(_LETTER.search, cells[x].split())}) for x in names}
            best = ",".join(sorted(sorted(names, key=lambda x: -words[x])[:2]))
            advice += (
                f", and name the columns in a first line, or keep two (of TSV: `cut -f {best}`)"
            )
        raise CorpusError(f"{path}: which columns are source and target? {shown}: {advice}")
    return columns, itertools.chain(head, rows)


def _choose(names: list[str], languages: Languages) -> tuple[str, str] | None:
    """Returns the names of the two sides, or None if they are not clear."""
    codes = [x for x in names if language_of(x)]
    if len(codes) > 2:  # "id" is Indonesian, and often the number of a row.
        codes = [x for x in codes if x.lower() != "id"]
    wanted = codes if len(codes) == 2 and languages == (None, None) else languages
    source, target = (x and _column(x, names) for x in wanted)
    found = [x and closest_language(x, names) for x in (source, target)]
    if None in found or found[0] == found[1]:
        known = ((x for x in names if x.lower() in side) for side in (_SOURCES, _TARGETS))
        source, target = (next(found, None) for found in known)
    return (source, target) if source and target else None


def _column(code: str, names: list[str]) -> str | None:
    """Returns the code if a file has the language, or the name of the nearest other region."""
    return code if closest_language(code, names) else closest_language(code, names, True)


def _table(path: Path, languages: Languages) -> Iterator[Row]:
    names: list[str] = []
    for number, cells in _cells(path, languages):
        if not names and _is_header(header := [x.strip() for x in cells], languages):
            names = header
            continue
        names = names or [f"{x + 1}" for x in range(len(cells))]
        if len(cells) != len(names):
            rule = f"a row must have as many columns as the first, {len(names)}"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {len(cells)}")
        yield dict(zip(names, cells, strict=True))


def _is_header(cells: list[str], languages: Languages) -> bool:
    """Returns whether the first row of a table names the sides, or one and other languages."""
    one = any(x and closest_language(x, cells, True) for x in languages)
    return _choose(cells, languages) is not None or (one and all(map(language_of, cells)))


def _cells(path: Path, languages: Languages) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line of each row of a TSV or CSV file, and its cells."""
    head, delimiter, start = beginning(read_lines(path), 100), "\t", 1
    if suffix_of(path) == ".csv":
        if first := re.fullmatch('"?sep=([\t|;,])"?', "".join(head[:1])):  # Excel's
            delimiter, start = first[1], 2
        else:
            delimiter = _delimiter("\n".join(head)[:_SAMPLED_CHARACTERS].split("\n"), languages)
    elif not _has_quoted_cells("\n".join(head)):
        yield from enumerate((line.split("\t") for line in read_lines(path)), start=1)
        return
    # Spaces between a quote that closes a cell and the delimiter. Quotes inside are doubled.
    end = re.escape(delimiter)
    spaces = re.compile(rf'((?<!")"(?:"")*|(?<![^{end}])"") +(?={end}|$)')
    text = itertools.islice(read_lines(path), start - 1, None)
    lines, skipped = (spaces.sub(r"\1", line) + "\n" for line in text), start
    rows = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for row in rows:
            if row:
                yield start, row
            start = rows.line_num + skipped
    except csv.Error as error:
        raise CorpusError(f"{path}, line {start:,}: {error}") from None


def _delimiter(lines: list[str], languages: Languages) -> str:
    """Returns the delimiter of the first lines of a CSV file.

    That of a header that names the sides comes first. Otherwise it is the one that gives most rows
    the same number of cells, at least two. Of several, it is the one that spaces follow least
    often, as they follow the commas of a sentence; then a tab before |, semicolon and comma.
    """

    def rank(delimiter: str) -> tuple[bool, float, int]:
        rows = []
        with suppress(csv.Error):
            rows = [x for x in csv.reader(lines, delimiter=delimiter) if x]
        widths = Counter(len(row) for row in rows if len(row) > 1)
        names_sides = bool(rows) and _choose([x.strip() for x in rows[0]], languages) is not None
        spaces = sum(cell.startswith(" ") for row in rows for cell in row)
        return names_sides, max(widths.values(), default=0) / max(1, len(rows)), -spaces

    return max("\t|;,", key=rank)


def _has_quoted_cells(text: str) -> bool:
    """Returns whether all quotes of a TSV file are around cells, or doubled inside."""
    rest = re.sub(r'(?m)(?:^|(?<=\t))"(?:[^"]|"")*"(?=\t|$)', "", text)
    return text != rest and '"' not in rest and ('""' in text or not rest.strip())


def _sides(row: Row) -> Row:
    """Returns the sides of a row of a Hugging Face dataset, which may be in one field."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            if line:
                row = json.loads(line)
                if "\\u" in line:  # can be half of a character
                    json.dumps(row, ensure_ascii=False).encode()
                yield _sides(row)
        except (ValueError, RecursionError, AttributeError):
            rule = "a line must be a JSON object (`jq -c '.[]'` makes lines of a JSON array)"
            raise CorpusError(f"{path}, line {number:,}: {rule}. Received: {line[:40]!r}") from None


def _parquet(path: Path) -> Iterator[Row]:
    try:
        with extra("pyarrow.parquet", path).ParquetFile(path) as file:
            for batch in file.iter_batches(1_024):
                yield from map(_sides, batch.to_pylist())
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors.
        raise CorpusError(f"{path}: {as_line(str(error))}") from None


def _messages(path: Path) -> Iterator[Row]:
    """Yields the messages of a PO file. A fuzzy translation counts as missing."""
    with open_text(path) as file:
        entries = po_entries(read_all(file, path), path)
    for entry in entries:
        target = entry.msgstr or entry.msgstr_plural.get(0, "")
        yield {"source": entry.msgid, "target": "" if entry.fuzzy else target}


def po_entries(content: bytes, path: Path) -> list[Any]:
    """Returns the messages of a PO file, but for the obsolete ones, as entries of polib.

    Raises `CorpusError` if the file is malformed or not UTF-8.
    """
    parse = extra("polib", path).pofile
    try:
        # polib ignores what is wrong in a line, and takes more characters for line breaks.
        lines = (" ".join(x.splitlines()) for x in content.decode("utf-8-sig").split("\n"))
        entries = parse("\n".join(x if _PO_LINE.fullmatch(x) else "?" for x in lines) + "\n")
        return [entry for entry in entries if not entry.obsolete]
    except (ValueError, OSError) as error:
        advice = "`msgconv -t UTF-8` converts other encodings"
        raise CorpusError(f"{path}: {as_line(str(error)).strip()}; {advice}") from None


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
                    size = 0
                    if next(unit.iter(etree.Entity), None) is not None:
                        rule = "an entity that XML does not define"
                        raise CorpusError(f"{path}, line {unit.sourceline:,}: {rule}")
                    yield from _unit_rows(unit)
                    unit.clear()
                    for element in (unit, *unit.iterancestors()):
                        while element.getprevious() is not None:
                            del element.getparent()[0]
                if size > _MOST_UNIT_BYTES:
                    raise CorpusError(f"{path}: a unit has more than {_MOST_UNIT_BYTES:,} bytes")
            parser.close()
    except etree.XMLSyntaxError as error:
        raise CorpusError(f"{path}, line {error.lineno:,}: {as_line(error.msg)}") from None


def _unit_rows(unit: Any) -> Iterator[Row]:
    """Yields the texts of a unit by language, or as source and target if XLIFF names only one."""
    sides: dict[str, Any] = {}
    if unit.tag.endswith("tu"):
        for variant in unit.iter("{*}tuv"):
            # Of several variants in one language, the first counts.
            language = variant.xpath("string(@*[local-name() = 'lang'])")
            sides.setdefault(language, variant.find("{*}seg"))
        yield {key: _text(seg) for key, seg in sides.items()}
        return
    names = [
        unit.xpath(f"string(ancestor::*/@{x}-language | ancestor::*/@{y}Lang)")
        for x, y in (("source", "src"), ("target", "trg"))
    ]
    if len({"", *names}) < 3:
        names = ["source", "target"]
    source, target, whole = (unit.find(f"{{*}}{x}") for x in ("source", "target", "seg-source"))
    states = {x.get("id"): x.get("conf", "new") for x in unit.iterfind("{*}seg-defs/{*}seg")}
    of_unit = " ".join(x.xpath(_STATE) for x in (unit, target) if x is not None)
    sources, targets = (_segments(x) for x in (whole, target))
    if not (sources and targets):
        sources, targets = {None: _text(source)}, {None: _text(target)}
        of_unit += " ".join(["", *states.values()])
    for key, text in sources.items():
        is_unfinished = _UNFINISHED.search(f"{of_unit} {states.get(key, '')}")
        texts = (text, "" if is_unfinished else targets.get(key, ""))
        yield dict(zip(names, texts, strict=True))


def _segments(element: Any) -> dict[Any, str]:
    """Returns the text of each segment of XLIFF 1.2 in a source or target, by its `mid`."""
    marks = () if element is None else element.iterfind(".//{*}mrk[@mtype='seg']")
    texts = dict[Any, str]()
    for mark in marks:  # Inline elements can divide a segment.
        texts[mark.get("mid")] = texts.get(mark.get("mid"), "") + _text(mark)
    return texts


def _text(element: Any) -> str:
    """Returns the text of an element. A line break and the indentation after it are a space."""
    text = "" if element is None else "".join(element.xpath(_TEXT))
    return re.sub(r"[ \t\r]*\n[ \t\r\n]*", " ", text)


_XML = (".tmx", ".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff", ".xml")
# What yields the rows of a file, by its suffix. Any other file is a table.
_READERS = {
    **{".parquet": _parquet, ".po": _messages, ".pot": _messages},
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json_lines),
    **dict.fromkeys(_XML, _xml_units),
}
