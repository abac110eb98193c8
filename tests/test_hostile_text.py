"""Text files and recipes of any bytes: the right result, or an error for the user; no other one.

Some are named. hypothesis draws others, the same in each run (`derandomize`), and prints the
smallest that fails.
"""

import gzip
import io
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from support.hostile_text import NO_TEXT, TEXT, lines_of
from support.time_limit import time_limit

from keras_transformer import Run, SearchOptions, Translator
from keras_transformer.data import CorpusError, read_lines, read_parallel
from keras_transformer.data.text_files import read_standard_input
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe
from keras_transformer.translation.open_run import open_model

RUN = Path(__file__).parent / "fixtures" / "trained_run"
FRAGMENTS = [
    *(bytes([byte]) for byte in b"\n\r\t\0 a\x0b\x0c\x1c\x7f"),
    *("ö \u2028 \u0085 \u0301 ש 😀 ▁ \ufeff <s> </s> <pad> ⁇".encode().split(b" ")),
    *(b"\r\n", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x1f\x8b", b"one two", b"x" * 70),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 300),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, 1e-320, math.inf, math.nan]),
    st.sampled_from(["", "nan", "inf", "none", "../..", "/dev/zero", "\0", "\udcff", "1e999"]),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
BYTES = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join) | st.binary(max_size=60)


def fuzz(count):
    """Draws `count` inputs, the same in each run."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=checks,
    )


def result_or_refusal(function, *refusals):
    """The result, or None if one of the `refusals` was raised, with a message."""
    try:
        with time_limit(60):
            return function()
    except refusals as error:
        assert str(error).strip()
        return None


def read_all(lines):
    """What was read, and whether it ended without an error."""
    found = []
    try:
        with time_limit(60):
            for line in lines:
                found.append(line)
    except CorpusError as error:
        assert "line" in str(error)
        return found, False
    return found, True


def check_lines(path, monkeypatch, data):
    """The same lines are read from a file, a packed file and standard input."""
    expected = lines_of(data)
    if data[:2] != b"\x1f\x8b":
        path.write_bytes(data)
        assert read_all(read_lines(path)) == expected
    path.write_bytes(gzip.compress(data, 1))
    assert read_all(read_lines(path)) == expected
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_all(read_standard_input()) == expected


@pytest.mark.parametrize("name", TEXT)
def test_files_packed_or_not_have_the_lines_that_a_text_has(name, tmp_path, monkeypatch):
    check_lines(tmp_path / "text", monkeypatch, TEXT[name])


@pytest.mark.parametrize("name", NO_TEXT)
def test_files_that_are_no_text_are_refused(name, tmp_path):
    (tmp_path / "text").write_bytes(NO_TEXT[name])
    with pytest.raises(CorpusError, match="text"):
        list(read_lines(tmp_path / "text"))


def test_translator_answers_each_string():
    run = Run.open(RUN)
    options = SearchOptions(beam_size=1, max_length=4)
    translator = Translator(open_model(run), run.tokenizer(), options)
    for name in TEXT:
        lines, _ = lines_of(TEXT[name])
        assert len(translator.translate(lines)) == len(lines), name
        assert len(list(translator.stream(lines))) == len(lines), name


@pytest.mark.slow
@fuzz(2500)
@given(BYTES)
def test_lines_of_any_bytes(tmp_path, monkeypatch, data):
    check_lines(tmp_path / "text", monkeypatch, data)


@pytest.mark.slow
@fuzz(900)
@given(BYTES, BYTES)
def test_parallel_text_of_any_bytes(tmp_path, one, other):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(gzip.compress(one, 1))
    target.write_bytes(gzip.compress(other, 1))
    pairs = result_or_refusal(lambda: list(read_parallel(source, target)), CorpusError)
    (sources, is_text), (targets, is_other_text) = lines_of(one), lines_of(other)
    if is_text and is_other_text and len(sources) == len(targets):
        assert pairs == list(zip(sources, targets, strict=True))
    else:
        assert pairs is None
    fields = [[x.replace("\r", " ").strip(" ") for x in line.split("\t")] for line in sources]
    rows = result_or_refusal(lambda: list(read_parallel(source)), CorpusError)
    if not is_text:
        assert rows is None
    # Quotes around cells are no text. Of more columns, two may be the sides.
    elif {*map(len, fields)} == {2} and not any('"' in line for line in sources):
        assert rows == [tuple(row) for row in fields]


@pytest.mark.slow
@fuzz(600)
@given(BYTES, st.data())
def test_damaged_gzip_files(tmp_path, data, draw):
    packed = damaged(gzip.compress(data, mtime=0), draw)
    path = tmp_path / "text.gz"
    path.write_bytes(packed)
    result_or_refusal(lambda: list(read_lines(path)), CorpusError)


def damaged(data, draw):
    """Bytes with a few of them changed, inserted or removed."""
    data = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data)))
        end = place + draw.draw(st.sampled_from([0, 1, 1, 1, 8, 10**9]))
        data[place:end] = draw.draw(st.binary(max_size=4))
    return bytes(data)


@pytest.mark.slow
@fuzz(1800)
@given(st.data())
def test_recipes(tmp_path, draw):
    text = (RUN / "recipe.yaml").read_text()
    if draw.draw(st.booleans()):
        content = damaged(text.encode(), draw)
    else:
        tree = yaml.safe_load(text)
        for _ in range(draw.draw(st.integers(1, 3))):
            section = tree
            while True:
                key = draw.draw(st.sampled_from(sorted(section)))
                if not isinstance(section[key], dict) or draw.draw(st.booleans()):
                    break
                section = section[key]
                if not section:
                    section[""] = None
            section[key] = draw.draw(TREES)
        content = json.dumps(tree).encode()
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    recipe = result_or_refusal(lambda: load_recipe(path), UserError)
    if recipe is not None:
        path.write_text(recipe.to_yaml(), encoding="utf-8")
        assert load_recipe(path) == recipe
