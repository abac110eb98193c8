"""Hostile files through every door: one line out for each line in, or an error before any line.

tests/formats/test_onnx_program.py has the same files for the exported script.
"""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hostile_text import HOSTILE, TEXT, lines_of

from keras_transformer import Run, SearchOptions, Translator
from keras_transformer.data import CorpusError, read_lines
from keras_transformer.data.text_files import read_standard_input
from keras_transformer.translation.open_run import open_model

RUN = Path(__file__).parent / "fixtures" / "trained_run"


@pytest.fixture(params=HOSTILE)
def name(request):
    return request.param


def test_files_have_the_lines_that_a_text_has(name, tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(HOSTILE[name])
    if lines_of(name) is None:
        with pytest.raises(CorpusError, match="text"):
            list(read_lines(path))
    else:
        assert list(read_lines(path)) == lines_of(name)
    if name in TEXT:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(HOSTILE[name])))
        assert list(read_standard_input()) == lines_of(name)


@pytest.fixture(scope="module")
def translator():
    run = Run.open(RUN)
    return Translator(open_model(run), run.tokenizer(), SearchOptions(beam_size=1, max_length=4))


def test_translator_answers_each_string(translator):
    for name in TEXT:
        lines = lines_of(name)
        assert len(translator.translate(lines)) == len(lines), name
        assert len(list(translator.stream(lines))) == len(lines), name
