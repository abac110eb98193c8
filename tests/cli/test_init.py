"""`keras-transformer init`: a recipe for own text, and nothing after an error."""

import bz2
import gzip
import json
import lzma
import re
import shlex

import pyarrow
import pytest
from support.command_line import fails, succeeds

from keras_transformer import load_recipe

DIGITS = "zero one two three four five six seven eight nine".split()
ZIFFERN = "null eins zwei drei vier fünf sechs sieben acht neun".split()
ALL_FILTERS = ("identical", "repeated", "wrong_language")
PAIRS = [
    (f"{DIGITS[a]} {DIGITS[b]} {DIGITS[c]}", f"{ZIFFERN[a]} {ZIFFERN[b]} {ZIFFERN[c]}")
    for a in range(10)
    for b in range(10)
    for c in range(6)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"my.corpus.{language}").write_text(text, encoding="utf-8")
    return tmp_path


def zstd(data):
    return pyarrow.compress(data, codec="zstd", asbytes=True)


def write_tsv(path, columns=2):
    lines = "".join("\t".join((*pair, "CC-BY")[:columns]) + "\n" for pair in PAIRS)
    path.write_text(lines, encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_printed_commands_run(folder):
    shown = succeeds("init", "my.corpus.en", "my.corpus.de")
    assert "600" in shown and "Latin 100%" in shown
    *_, train, evaluate, translate = shown.splitlines()
    assert train == "keras-transformer train my_en_de.yaml"
    small = "model.num_layers=1 model.d_model=8 model.num_heads=2 model.d_ff=11 training.steps=2 "
    small += "training.checkpoint_every=2 evaluation.average_last=1 training.warmup_steps=2"
    options = [word for setting in small.split() for word in ("--set", setting)]
    succeeds(*shlex.split(train)[1:], *options)
    assert "BLEU" in succeeds(*shlex.split(evaluate)[1:])
    echo, sentence, pipe, _, *arguments = shlex.split(translate)
    assert (echo, pipe) == ("echo", "|")
    assert sentence in [source for source, _ in PAIRS]
    assert succeeds(*arguments, input=sentence + "\n").endswith("\n")


def test_the_table_has_what_was_found(folder):
    for language in ("en", "de"):
        with (folder / f"my.corpus.{language}").open("a", encoding="utf-8") as file:
            file.write("\n2026\n2026\n")
    lines = succeeds("init", "my.corpus.en", "my.corpus.de").splitlines()
    rows = [line.split() for line in lines]
    for row in (
        "sentence pairs 603",
        "with an empty side 1",
        "repeated 1",
        "equal on both sides 2",
        "source (en) target (de)",
        "different sentences 601 601",
        "words: median 3 3",
        "held out 50 pairs for validation, 50 for test",
    ):
        assert row.split() in rows, row


def test_every_file_name_gives_a_name_that_a_recipe_may_have(folder):
    shown = succeeds("init", "my.corpus.en", "my.corpus.de", "--output", "-½ köln².yaml")
    assert "keras-transformer train './-½ köln².yaml'" in shown
    assert load_recipe("-½ köln².yaml").name == "__köln_"


def test_languages_come_from_names_or_options(folder):
    write_tsv(folder / "text.tsv")
    assert "--source-language and --target-language" in fails("init", "text.tsv")
    assert "--target-language" in fails("init", "text.tsv", "--source-language", "en")
    succeeds("init", "text.tsv", "--source-language", "en", "--target-language", "zh-Hant-HK")
    assert load_recipe("text.yaml").data.target_language == "zh-Hant-HK"
    arguments = ["my.corpus.en", "my.corpus.de", "--target-language", "ko", "--output", "o.yaml"]
    succeeds("init", *arguments)
    recipe = load_recipe("o.yaml")
    assert (recipe.name, recipe.data.target_language) == ("o", "ko")
    for wrong in ("../x", "german"):
        message = fails("init", "my.corpus.en", "my.corpus.de", "--target-language", wrong)
        assert message == f"'{wrong}' is not a language code such as en or pt-BR"


def test_the_recipe_of_one_language_keeps_equal_sides(folder):
    (folder / "clean.en").write_bytes((folder / "my.corpus.en").read_bytes())
    assert "repeated, above" in succeeds("init", "my.corpus.en", "clean.en")
    data = load_recipe("my_en_en.yaml").data
    assert (data.source_language, data.target_language, data.filters.identical) == (
        *("en", "en"),
        False,
    )


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("x.en.xz", "x.de.xz"), ("en", "de")),
        (("a-to.pt_BR.txt", "b.zho_Hans.txt.zst"), ("pt-BR", "zh-Hans")),
        (("up-to-en-de.tsv",), ("en", "de")),
        (("news_v2.fr-pt_BR.tsv.bz2",), ("fr", "pt-BR")),
        (("plain.csv",), ("en", "de")),
        (("memory.tmx",), ("en-US", "de-DE")),
        (("set.jsonl.gz",), ("en", "de")),
    ],
)
def test_languages_come_from_parts_of_names_that_are_languages(folder, names, languages):
    for side, name in enumerate(names):
        lines = [pair[side] if len(names) == 2 else "\t".join(pair) for pair in PAIRS]
        if name == "plain.csv":
            lines = ["de,en", *(f"{y},{x}" for x, y in PAIRS)]
            languages = ("de", "en")
        elif name == "memory.tmx":
            variant = "<tuv xml:lang='{}'><seg>{}</seg></tuv>"
            units = (variant.format("EN-US", x) + variant.format("de-DE", y) for x, y in PAIRS)
            lines = ["<tmx><body>", *(f"<tu>{unit}</tu>" for unit in units), "</body></tmx>"]
        elif name == "set.jsonl.gz":
            lines = [json.dumps({"translation": {"en": x, "de": y}}) for x, y in PAIRS]
        data = "\n".join(lines).encode() + b"\n"
        compress = {"xz": lzma.compress, "bz2": bz2.compress, "gz": gzip.compress, "zst": zstd}
        (folder / name).write_bytes(compress.get(name.rpartition(".")[2], bytes)(data))
    shown = succeeds("init", *names, "--output", "r.yaml")
    assert f"source ({languages[0]})" in shown and "600" in shown
    data = load_recipe("r.yaml").data
    assert (data.source_language, data.target_language) == languages
    assert (data.train.source, data.train.target) == (*names, None)[:2]


def test_marks_headers_and_pairs_that_filters_drop_are_told(folder):
    extra = [("source", "target"), ("equal", "equal"), ("a", "far too long " * 9), PAIRS[0]]
    german = [
        ("Das ist ein deutscher Satz und kein englischer Satz.", f"Ja, das ist er, {n}.")
        for n in range(9)
    ]
    for side, language in enumerate(("en", "de")):
        lines = [pair[side].replace("one ", "o@@ ne ") for pair in [*extra, *PAIRS, *german]]
        (folder / f"all.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [" ".join(line.split()) for line in succeeds("init", "all.en", "all.de").splitlines()]
    assert {"repeated 1", "length ratio above 9 1"} < {*rows}
    assert any(re.match("other language, about (9|1[0-2])$", x) for x in rows)
    assert "notice the first pair may be a header: source = target" in rows
    assert any(
        re.match("notice [0-9]+% of the pairs have the marks @@ of BPE: `sed", x) for x in rows
    )
    filters = load_recipe("all_en_de.yaml").data.filters
    assert filters.model_dump() == {"max_length_ratio": 9, **dict.fromkeys(ALL_FILTERS, True)}


def test_an_existing_file_is_not_overwritten(folder):
    (folder / "my_en_de.yaml").write_text("mine")
    assert "already exists" in fails("init", "my.corpus.en", "my.corpus.de")
    assert (folder / "my_en_de.yaml").read_text() == "mine"


@pytest.mark.parametrize("options", [(), ("--output", "x" * 300)], ids=("", "bad output"))
def test_text_of_one_language_needs_the_other_file(folder, options):
    (folder / "one half.en").write_text("a\nb\n")
    message = fails("init", "one half.en", *options)
    assert message.startswith("one half.en: which columns are source and target?")
    assert message.endswith("give the file with the translations too")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda x, y: (x, y + b"mehr\n"), "bad.en with 600 and .*bad.de with 601"),
        (lambda x, y: (x, y[:-1] + b"\xff\n"), "bad.de, line 600: text must be UTF-8"),
        (lambda x, y: (b"", b""), "at least 200 pairs"),
        (None, "columns are source and target.*`cut -f 1,2`"),  # three columns in one file
    ],
)
def test_bad_text_writes_nothing(folder, damage, message):
    texts = [(folder / f"my.corpus.{language}").read_bytes() for language in ("en", "de")]
    files = [folder / "bad.en", folder / "bad.de"] if damage else [folder / "en-de.tsv"]
    for file, text in zip(files, damage(*texts) if damage else texts, strict=False):
        file.write_bytes(text)
    if damage is None:
        write_tsv(*files, columns=3)
    before = sorted(folder.rglob("*"))
    line = fails("init", *files)
    assert re.search(message, line), line
    assert sorted(folder.rglob("*")) == before
