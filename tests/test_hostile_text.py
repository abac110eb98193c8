"""Hostile files through every door: one line out for each line in, or an error before any line."""

import gzip
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hostile_text import NO_TEXT, TEXT, lines_of

from keras_transformer import Run, SearchOptions, Translator
from keras_transformer.data import CorpusError, read_lines
from keras_transformer.data.text_files import read_standard_input
from keras_transformer.translation.open_run import open_model

RUN = Path(__file__).parent / "fixtures" / "trained_run"


@pytest.mark.parametrize("name", TEXT)
def test_files_packed_or_not_have_the_lines_that_a_text_has(name, tmp_path, monkeypatch):
    path, data = tmp_path / "text", TEXT[name]
    lines, _ = lines_of(data)
    for content in (data, gzip.compress(data)):
        path.write_bytes(content)
        assert list(read_lines(path)) == lines
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert list(read_standard_input()) == lines


@pytest.mark.parametrize("name", NO_TEXT)
def test_files_that_are_no_text_are_refused(name, tmp_path):
    (tmp_path / "text").write_bytes(NO_TEXT[name])
    with pytest.raises(CorpusError, match="text"):
        list(read_lines(tmp_path / "text"))


@pytest.fixture(scope="module")
def translator():
    run = Run.open(RUN)
    return Translator(open_model(run), run.tokenizer(), SearchOptions(beam_size=1, max_length=4))


def test_translator_answers_each_string(translator):
    for name in TEXT:
        lines, _ = lines_of(TEXT[name])
        assert len(translator.translate(lines)) == len(lines), name
        assert len(list(translator.stream(lines))) == len(lines), name
