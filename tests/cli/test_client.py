"""`keras-transformer client`, with a client that a test scripts."""

import pytest
from support.command_line import fails, invoke, succeeds

from keras_transformer import serving
from keras_transformer.cli import terminal
from keras_transformer.serving import ServingClient


class Endpoint:
    address, model, version = "here", "m", None

    def __init__(self, answer):
        self.answer = answer

    def predict(self, signature, inputs):
        texts = [self.answer(text) for text in inputs["text"]]
        return {"translation": texts, "score": [-0.5] * len(texts)}


def serve(monkeypatch, answer):
    monkeypatch.setattr(serving, "connect", lambda *_, **__: ServingClient(Endpoint(answer), 0))


def test_each_line_gives_a_line(monkeypatch, tmp_path):
    serve(monkeypatch, str.upper)
    assert succeeds("client", "m", input="a\n\nb\n") == "A\n\nB\n"
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("a\nb")
    succeeds("client", "m", source, "--scores", "--output", output)
    assert output.read_text() == "-0.5000\tA\n-0.5000\tB\n"


def test_a_user_is_asked_for_each_sentence(monkeypatch):
    serve(monkeypatch, str.upper)
    monkeypatch.setattr(terminal, "is_session", lambda file: file is None)
    result = invoke("client", "m", input="a\nb\n")
    assert result.stdout == "A\nB\n"
    hint, *prompts = result.stderr.splitlines()
    assert hint == "Type one sentence at a time, in the source language. Ctrl-D ends."
    assert prompts == ["> > > "]
    assert result.output.splitlines()[1:] == ["> A", "> B", "> "]


def test_more_best_than_beams_are_refused():
    message = fails("client", "m", "--n-best", 3, "--beam-size", 2, input="a\n")
    assert message == "--n-best must be at most the beam size, 2. Received: 3"


@pytest.mark.parametrize(
    "arguments",
    [
        ("m", "--timeout", "1e300"),
        ("m", "--timeout", "nan"),
        ("m", "--beam-size", 2**31),
        ("m", "--max-length", 2**31),
        ("\udcff",),  # an argument of the process that is not UTF-8
    ],
)
def test_arguments_that_no_request_can_have_are_refused(arguments):
    result = invoke("client", *arguments, "--address", "http://localhost:1", input="a\n")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")
