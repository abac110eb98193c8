"""Each format that translators have is read, and malformed files are refused by place."""

import bz2
import gzip
import json
import lzma
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest

from keras_transformer.data import CorpusError, parallel_text, read_parallel

PAIRS = [('She said: "Hello, you!"', "Sie sagte: „Hallo, du!“"), ("a; b\tc, d", "ä & <ö>")]
QUOTED = [tuple(f'"{side.replace(chr(34), chr(34) * 2)}"' for side in pair) for pair in PAIRS]
JOEY = ("src", "trg", "src_prompt", "trg_prompt")
UTF_16 = '<?xml version="1.0" encoding="UTF-16"?>'
DOCTYPE = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
XLIFF = '<xliff xmlns="urn:oasis:names:tc:xliff:document:{}" version="{}" {}>{}</xliff>'


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def tmx(*units, header=DOCTYPE, attribute="xml:lang"):
    variants = (
        "".join(f'<tuv {attribute}="{x}"><seg>{text}</seg></tuv>' for x, text in unit.items())
        for unit in units
    )
    body = "\n".join(f"<tu><note>x</note>{variant}</tu>" for variant in variants)
    return f'{header}<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>'


def xliff_1(*units, languages='source-language="en" target-language="de-AT"'):
    body = "".join(f'<trans-unit id="1">{unit}</trans-unit>' for unit in units)
    return XLIFF.format("1.2", "1.2", "", f"<file {languages}><body>{body}</body></file>")


def xliff_2(*units):
    body = "".join(f'<unit id="1"><segment>{unit}</segment></unit>' for unit in units)
    return XLIFF.format("2.0", "2.0", 'srcLang="en" trgLang="de"', f'<file id="f">{body}</file>')


UNITS = [{"en": escaped(source), "de": escaped(target)} for source, target in PAIRS]
ELEMENTS = [f"<source>{x['en']}</source><target>{x['de']}</target>" for x in UNITS]
PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n' + "\n".join(
    f"msgid {json.dumps(source)}\nmsgstr {json.dumps(target, ensure_ascii=False)}\n"
    for source, target in PAIRS
)


def rows(*keys, pairs=PAIRS, **more):
    return [dict(zip(keys, pair, strict=True)) | more for pair in pairs]


def lines(objects):
    return "".join(json.dumps(x) + "\n" for x in objects)


def table(delimiter, *cells):
    return "".join(delimiter.join(row) + "\n" for row in cells)


def parquet(path, objects):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(objects), path)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", table(",", *QUOTED)),
        ("semicolons.csv", table(";", ("source", "target"), *QUOTED)),
        ("spaces.csv", table(",", (" en", "de "), *QUOTED)),
        ("excel.CSV", "\ufeff" + table(";", ("id", "EN-us", "de"), *[("1", *x) for x in QUOTED])),
        ("iso.tsv", table("\t", ("eng", "deu"), *QUOTED)),
        ("joey.tsv", table("\t", JOEY, *[(*x, "p", "q") for x in QUOTED])),
        ("swapped.tsv", table("\t", ("score", "de", "en"), *[("0.9", y, x) for x, y in QUOTED])),
        ("quoted.tsv", table("\t", *QUOTED)),
        ("hub.jsonl", lines({"id": "x", "translation": x} for x in rows("en", "de"))),
        ("flat.json", lines(rows("source", "target", id=3, domain="news")) + "\n"),
        ("regions.ndjson", lines(rows("en-GB", "de-DE"))),
        ("a.tmx", tmx(*UNITS)),
        ("wide.tmx", tmx(*UNITS, header=UTF_16).encode("utf-16")),
        ("old.tmx", tmx(*UNITS, header="", attribute="lang")),
        ("a.xlf", xliff_1(*ELEMENTS)),
        ("none.sdlxliff", xliff_1(*ELEMENTS, languages='source-language="en"')),
        ("two.xliff", xliff_2(*ELEMENTS)),
        ("a.po", PO),
    ],
)  # fmt: skip
def test_one_file_with_both_sides_gives_the_pairs(tmp_path, name, content):
    text = read_parallel(write(tmp_path / name, content), languages=("en", "de"))
    assert list(text) == list(text) == PAIRS


def test_hugging_face_rows_of_parquet(tmp_path):
    nested, flat, numbers = (tmp_path / f"{name}.parquet" for name in ("nested", "flat", "bad"))
    parquet(nested, [{"id": "1", "translation": x} for x in rows("de", "en")])
    assert list(read_parallel(nested, languages=("de", "en"))) == PAIRS
    assert list(read_parallel(nested, languages=("en", "de"))) == [x[::-1] for x in PAIRS]
    parquet(flat, [*rows("src", "tgt", score=0.5), {"src": "missing", "tgt": None}])
    assert list(read_parallel(flat)) == [*PAIRS, ("missing", "")]
    parquet(numbers, [{"source": "a", "target": "b"}] * 2_000)
    assert len(list(read_parallel(numbers))) == 2_000
    write(tmp_path / "cut.parquet", numbers.read_bytes()[:-20])
    with pytest.raises(CorpusError, match="cut.parquet: Parquet magic bytes not found"):
        list(read_parallel(tmp_path / "cut.parquet"))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("bz2", bz2.compress),
        ("zst", lambda data: pyarrow.compress(data, codec="zstd", asbytes=True)),
    ],
)
def test_compressed_files_of_all_formats(tmp_path, suffix, compress):
    one = [("one", "eins")]
    for name, content, pairs in (
        ("a.tsv", "one\teins\n" * 9, one * 9),
        ("b.csv", "one,eins\n", one),
        ("c.po", PO, PAIRS),
    ):
        path = write(tmp_path / f"{name}.{suffix}", compress(content.encode()))
        assert list(read_parallel(path)) == pairs
    many = compress("".join(f"{n}\t{n * n}\n" for n in range(9_999)).encode())
    for damage in (many[:-7], many[:99], many[:10] + b"!" * 9 + many[19:]):
        with pytest.raises(CorpusError, match=f"d.tsv.{suffix}: cannot be read"):
            list(read_parallel(write(tmp_path / f"d.tsv.{suffix}", damage)))


def test_a_tsv_file_without_header_is_read_character_by_character(tmp_path):
    text = '"Hello," she said.\t"Hallo."\nNo header\t""\n5" disk\t\n'
    expected = [tuple(line.split("\t")) for line in text.splitlines()]
    path = write(tmp_path / "a.tsv", text)
    assert list(read_parallel(path, languages=("en", "de"))) == expected
    path = write(tmp_path / "a.txt", "no\tja\nid\tde\n")
    assert list(read_parallel(path, languages=("en", "fr"))) == [("no", "ja"), ("id", "de")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.po"])
def test_an_empty_file_has_no_pairs(tmp_path, name):
    assert list(read_parallel(write(tmp_path / name, ""))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Oh, yes;O, ja\nOh, no;O, du\n", [("Oh, yes", "O, ja"), ("Oh, no", "O, du")]),
        ("Well, yes;Ja\nOh, no;Nein\n", [("Well, yes", "Ja"), ("Oh, no", "Nein")]),
        ("Well, yes\tJa\nOh, no\tNein\n", [("Well, yes", "Ja"), ("Oh, no", "Nein")]),
        ("1,5;2,5\n3,5;4,5\n", [("1,5", "2,5"), ("3,5", "4,5")]),
        ("a; b,ä; b\nc; d,c; ö\n", [("a; b", "ä; b"), ("c; d", "c; ö")]),
        ("a;b;\r\nc, d;d;\r\n", [("a", "b"), ("c, d", "d")]),
        ("\ufeffsep=;\r\na, b;c\r\n", [("a, b", "c")]),
        ('en,de\n"I ""Hi, you"".","Er; ""du, da""."\n', [('I "Hi, you".', 'Er; "du, da".')]),
        ('"a, b" , "c"\n"say ""x"" ","" \n"" ,"d" \n', [("a, b", "c"), ('say "x"', ""), ("", "d")]),
        ('"Is it?\nNo, never";"Ja""\n"\nb;c\n', [("Is it? No, never", 'Ja"'), ("b", "c")]),
        ('en,de\r\n"a\r\nb","c\nd"\r\n\r\n"",\r\n', [("a b", "c d"), ("", "")]),
        ("a|b, c\nd|e, f\n", [("a", "b, c"), ("d", "e, f")]),
    ],
)  # fmt: skip
def test_csv_is_split_at_the_delimiter_of_its_rows(tmp_path, text, expected):
    path = write(tmp_path / "a.csv", text)
    assert list(read_parallel(path, languages=("en", "de"))) == expected


@pytest.mark.parametrize(
    ("units", "language", "expected"),
    [
        ([{"en": "a", "zh-TW": "T", "zh-CN": "C"}, {"en": "b", "zh-TW": "U"}], "zh-Hans", "C "),
        ([{"en": "a", "pt-PT": "P"}, {"en": "b", "pt-BR": "B"}], "pt-BR", " B"),
        ([{"en": "a", "pt-PT": "P"}] * 1_001 + [{"pt-BR": "B"}], "pt-BR", " " * 1_001 + "B"),
        ([{"en": "a", "pt-PT": "P"}, {"en": "b"}], "pt-BR", "P "),
        ([{"en": "a", "de-AT": "A"}, {"en": "b", "de": "D"}], "de", "AD"),
    ],
)  # fmt: skip
def test_a_unit_gives_the_variant_of_the_language_that_is_wanted(
    tmp_path, units, language, expected
):
    for name, content in (("a.tmx", tmx(*units)), ("a.jsonl", lines(units))):
        found = read_parallel(write(tmp_path / name, content), languages=("en", language))
        assert [target for _, target in found] == [x.strip() for x in expected]


def test_another_script_is_refused_and_the_first_of_two_variants_counts(tmp_path):
    unit = {"en": "a", "sr": "б"}
    for name, content in (
        ("a.tmx", tmx(unit)), ("a.jsonl", lines([unit])), ("a.csv", "en,sr\na,б\n"),
    ):  # fmt: skip
        with pytest.raises(CorpusError, match="which columns are source and target.*sr"):
            list(read_parallel(write(tmp_path / name, content), languages=("en", "sr-Latn")))
    content = tmx({"en": "a", "de": "eins", "DE2": "zwei"}).replace("DE2", "de")
    assert list(read_parallel(write(tmp_path / "a.tmx", content))) == [("a", "eins")]


def test_white_space_around_segments_is_no_text(tmp_path):
    unit = "<source>\n   Save\n   all\u00a0\n  </source><target> Save all\u00a0 </target>"
    path = write(tmp_path / "a.xlf", xliff_1(unit))
    assert list(read_parallel(path)) == [("Save all\u00a0", "Save all\u00a0")]
    units = [{"en": " a\r\n", "de": "\n\tä "}]
    assert list(read_parallel(write(tmp_path / "a.tmx", tmx(*units)))) == [("a", "ä")]


SDL = "xmlns:sdl='http://sdl.com/FileTypes/SdlXliff/1.0'"


def test_segments_of_xliff_are_pairs_of_their_own(tmp_path):
    mark = "<mrk mtype='seg' mid='{}'>{}</mrk>"
    sources, targets = (
        " ".join(mark.format(*x) for x in enumerate(texts, start=1))
        for texts in ("One.|Two.|Three.|Four.|Five.|Six.".split("|"),
                      ["Eins.", "", "Drei.", "Vier.", "Fünf."])
    )  # fmt: skip
    states = ("Translated", "Translated", "RejectedTranslation", "ApprovedSignOff", "Draft")
    seg = "".join(f"<sdl:seg id='{n}' conf='{x}'/>" for n, x in enumerate(states, start=1))
    unit = f"<source>All.</source><seg-source><g id='1'>{sources}</g></seg-source>"
    unit += f"<target><g id='1'>{targets}</g></target><sdl:seg-defs {SDL}>{seg}</sdl:seg-defs>"
    expected = [
        *(("One.", "Eins."), ("Two.", ""), ("Three.", ""), ("Four.", "Vier.")),
        *(("Five.", ""), ("Six.", "")),
    ]
    assert list(read_parallel(write(tmp_path / "a.sdlxliff", xliff_1(unit)))) == expected
    memo = xliff_1("<source>a</source><target>b</target>").replace(
        "<trans-unit", "<trans-unit xmlns:mq='MQXliff' mq:status='{}'"
    )
    for state, found in (("NotStarted", ""), ("Rejected", ""), ("ManuallyConfirmed", "b")):
        path = write(tmp_path / "a.mqxliff", memo.format(state))
        assert list(read_parallel(path)) == [("a", found)]
    path = write(
        tmp_path / "a.xlf", xliff_2(*ELEMENTS).replace("<segment>", "<segment state='initial'>")
    )
    assert [target for _, target in read_parallel(path)] == ["", ""]


def test_messages_of_gettext_with_contexts_and_odd_characters(tmp_path):
    more = '\nmsgctxt "menu"\nmsgid ""\n"a\\n"\n"b\u2028c"\nmsgstr "ä\\t\\"ö\\""\r\n'
    assert list(read_parallel(write(tmp_path / "a.po", PO + more)))[2:] == [("a b c", 'ä\t"ö"')]


def test_files_that_are_seldom_lines_are_told_once(tmp_path, capsys):
    for suffix in ("json", "strings", "SRT", "vtt.gz", "txt"):
        paths = [write(tmp_path / f"{side}.{suffix}", "a\n") for side in ("en", "de")]
        pairs = read_parallel(*paths)
        assert [*pairs] == [*pairs] == [("a", "a")]
        told = capsys.readouterr().err.count("notice: each line of")
        assert told == (0 if suffix == "txt" else 2), suffix


def test_inline_codes_are_no_text_and_unfinished_targets_are_empty(tmp_path):
    code = '<bpt i="1">&lt;b&gt;</bpt>Press<ept i="1">&lt;/b&gt;</ept> <hi>OK</hi><!-- c --> now'
    units = {"en": code, "fr": "x", "DE-at": "drücken"}, {"en": "only"}, {"de": "nur"}
    path = write(tmp_path / "a.tmx", tmx(*units))
    text = list(read_parallel(path, languages=("en", "de")))
    assert text == [("Press OK now", "drücken"), ("only", ""), ("", "nur")]
    path = write(
        tmp_path / "a.xlf",
        xliff_1(
            '<source>a<x id="1"/><g id="2">b</g><ph>%s</ph></source><target>ä</target>'
            "<alt-trans><source>no</source><target>nein</target></alt-trans>",
            '<source>c</source><target state="needs-translation">c</target>',
            "<source>d</source>",
        ),
    )
    assert list(read_parallel(path)) == [("ab", "ä"), ("c", ""), ("d", "")]
    more = (
        '\n#, fuzzy\nmsgid "f"\nmsgstr "g"\n\nmsgid "one"\nmsgid_plural "many"\nmsgstr[0] "eins"\n'
    )
    path = write(tmp_path / "a.po", PO + more + '\n#~ msgid "old"\n#~ msgstr "alt"\n')
    assert list(read_parallel(path)) == [*PAIRS, ("f", ""), ("one", "eins")]


ENTITY = '<?xml version="1.0"?><!DOCTYPE tmx [{}]>'
BOMB = '<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {x} "{f"&{y};" * 10}">' for x, y in zip("bcdefghij", "abcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'en,de\na,b\n"open,b\nc,d\n', "a.csv, line 3: unexpected end of data"),
        ("a.csv", "en,de\na,b\nc,d,e\n", "line 3: a row must have as many .*2. Received: 3"),
        ("a.csv", f'en,de\n"{"x" * 200_000}",b\n', "a.csv, line 2: field larger than field limit"),
        ("a.csv", "a,b,c\nd,e,f\n", r"which columns are source and target\? 1 \(a d\), 2 \(b e\)"),
        ("a.tsv", "0.98\tHello\tHallo\n0.5\tone two\teins zwei\n", r"1 \(0.98 0.5\).*`cut -f 2,3`"),
        ("a.tsv", "Go.\tGeh.\tCC by\n" + "x y z\tä ö ü\tCC by\n" * 9, "TSV: `cut -f 1,2`.$"),
        ("a.tsv", "no tab\nat all\n", "1 .no tab at all.: give the file with the transl"),
        ("a.tsv", "one\tx\nno tab\n", "a.tsv, line 2: a row must have as many.*: 1"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"\n', "a.jsonl, line 2: a line must be"),
        ("a.jsonl", '{"en": "a", "de": ["b"]}\n', r"a.jsonl, row 1: no text. Received: \['b'\]"),
        ("a.jsonl", '{"en": "\\ud800", "de": "b"}\n', "a.jsonl, line 1: a line must be a JSON"),
        ("a.json", '[{"en": "a"}]', r"a.json, line 1: .*jq -c '\.\[\]'"),
        ("a.json", "[" * 100_000, "a.json, line 1: a line must be a JSON object"),
        ("a.parquet", "en,de\n", "a.parquet: Parquet"),
        ("a.tmx", tmx(*UNITS)[:-13], "a.tmx, line 4: Premature end"),
        ("a.tmx", "", "a.tmx, line 0: no element found"),
        ("a.tmx", tmx({"en": "a", "de": "b", "fr": "c"}), r"en \(a\), de \(b\), fr \(c\)"),
        ("a.tmx", tmx({"en": "&j;"}, header=ENTITY.format(BOMB)), "entity amplification|an entity"),
        ("a.tmx", tmx({"en": "&c;"}, header=ENTITY.format(BOMB)), "line 2: an entity that XML"),
        ("a.po", 'msgid "a\nmsgstr "b"\n', r"a.po: Syntax error .*\(line 1\)"),
        ("a.po", PO.encode("latin-1", "replace"), "a.po: 'utf-8' codec .*`msgconv -t UTF-8`"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused_with_their_place(tmp_path, name, content, message):
    with pytest.raises(CorpusError, match=message) as caught:
        list(read_parallel(write(tmp_path / name, content)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entity",
    ['<!ENTITY x SYSTEM "{}">', '<!ENTITY % y SYSTEM "{}"> %y;', '<!ENTITY x PUBLIC "p" "{}">'],
)
@pytest.mark.parametrize("form", [tmx, xliff_1])
def test_xml_reads_no_other_file(tmp_path, entity, form):
    secret = write(tmp_path / "secret.txt", "<!ENTITY x 'SECRET'>")
    header = ENTITY.format(entity.format(secret.as_uri()))
    unit = "<source>&x;</source><target>b</target>"
    content = tmx({"en": "&x;", "de": "b"}, header=header) if form is tmx else header + form(unit)
    with pytest.raises(CorpusError, match="an entity that XML does not define|not defined"):
        list(read_parallel(write(tmp_path / "a.tmx", content)))


@pytest.mark.slow
def test_memory_is_bounded(tmp_path, monkeypatch):
    unit = "<tu><tuv xml:lang='en'><seg>{0}</seg></tuv><tuv xml:lang='de'><seg>{0}</seg></tuv></tu>"
    units = "".join(map(unit.format, range(20_000)))
    path = write(tmp_path / "a.tmx.gz", gzip.compress(f"<tmx><body>{units}</body></tmx>".encode()))
    tracemalloc.start()
    assert sum(1 for _ in read_parallel(path)) == 20_000
    assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    tracemalloc.stop()
    monkeypatch.setattr(parallel_text, "_MOST_UNIT_BYTES", 2**17)
    with pytest.raises(CorpusError, match="a.tmx.gz: a unit has more than 131,072 bytes"):
        list(read_parallel(write(path, gzip.compress(b"<tmx><header>" + b"<p/>" * 2**20))))
