"""Text files and recipes of any bytes: the right result, or an error for the user; no other one.

hypothesis draws the same inputs in each run (`derandomize`), and prints the smallest that fails.
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
from support.hostile_text import lines_of
from support.time_limit import time_limit

from keras_transformer.data import CorpusError, read_lines, read_parallel
from keras_transformer.data.text_files import read_standard_input
from keras_transformer.errors import UserError
from keras_transformer.recipe.files import load_recipe

pytestmark = pytest.mark.slow

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
TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join) | st.binary(max_size=60)


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


@fuzz(2500)
@given(TEXT)
def test_lines_of_any_bytes(tmp_path, monkeypatch, data):
    expected = lines_of(data)
    path = tmp_path / "text"
    if data[:2] != b"\x1f\x8b":
        path.write_bytes(data)
        assert read_all(read_lines(path)) == expected
    path.write_bytes(gzip.compress(data, 1))
    assert read_all(read_lines(path)) == expected
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_all(read_standard_input()) == expected


@fuzz(900)
@given(TEXT, TEXT)
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


@fuzz(600)
@given(TEXT, st.data())
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


@pytest.fixture(scope="module")
def recipe_tree():
    return yaml.safe_load((RUN / "recipe.yaml").read_text())


@fuzz(1800)
@given(st.data())
def test_recipes(tmp_path, recipe_tree, draw):
    text = yaml.safe_dump(recipe_tree)
    if draw.draw(st.booleans()):
        content = damaged(text.encode(), draw)
    else:
        tree = json.loads(json.dumps(recipe_tree))
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
