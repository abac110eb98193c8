"""Hostile files through every door: one line out for each line in, or an error before any line.

tests/export/test_onnx_program.py has the same files for the exported script, and
tests/serving/test_hostile_requests.py for a served model.
"""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.command_line import invoke
from support.hostile_text import HOSTILE, TEXT, lines_of

from keras_transformer import Run, SearchOptions, Translator, serving
from keras_transformer.data import CorpusError, read_lines
from keras_transformer.data.corpus import read_standard_input
from keras_transformer.serving import ServingClient
from keras_transformer.translation.open_run import open_model

RUN = Path(__file__).parent / "fixtures" / "trained_run"
SEARCH = ("--beam-size", "1", "--max-length", "4")


@pytest.fixture(params=HOSTILE)
def name(request):
    return request.param


def check(result, name):
    """A line for each line; or one line of error, and at most the lines before the wrong one."""
    lines, error = lines_of(name), result.stderr.splitlines()
    count = result.stdout.count("\n")
    if lines is None:
        assert result.exit_code == 2, result.output
        assert error[-1].startswith("Error: ") and count <= 1
    else:
        assert result.exit_code == 0, result.output
        assert count == len(lines)
        assert result.stdout.endswith("\n") or not lines


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


@pytest.mark.slow
def test_translate_answers_each_line_of_a_file(name, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(HOSTILE[name])
    check(invoke("translate", RUN, path, *SEARCH), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.endswith(", packed")])
def test_translate_answers_each_line_of_standard_input(name):
    check(invoke("translate", RUN, *SEARCH, input=HOSTILE[name]), name)


class Echo:
    """A server that gives back what it got, with line ends."""

    address, model, version = "here", "m", None

    def predict(self, signature, inputs):
        return {
            "translation": [f"{x}\r\n" for x in inputs["text"]],
            "score": [0] * len(inputs["text"]),
        }


def test_client_answers_each_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "connect", lambda *_, **__: ServingClient(Echo(), 0))
    path = tmp_path / "text"
    path.write_bytes(HOSTILE[name])
    result = invoke("client", "m", path, "--batch-size", 1000)
    check(result, name)
    if lines_of(name) is not None:
        expected = "".join(line.replace("\r", " ") + "  \n" for line in lines_of(name))
        assert result.stdout_bytes.decode() == expected


@pytest.fixture(scope="module")
def translator():
    run = Run.open(RUN)
    return Translator(open_model(run), run.tokenizer(), SearchOptions(beam_size=1, max_length=4))


def test_translator_answers_each_string(translator):
    for name in TEXT:
        lines = lines_of(name)
        assert len(translator.translate(lines)) == len(lines), name
        assert len(list(translator.stream(lines))) == len(lines), name
