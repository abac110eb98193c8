"""`keras-transformer client`, with a client that a test scripts."""

from support.command_line import fails, succeeds

from keras_transformer import serving
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


def test_a_line_end_in_an_answer_adds_no_line(monkeypatch):
    serve(monkeypatch, lambda text: f"{text}\nmore\r\n")
    assert succeeds("client", "m", input="a\nb\n") == "a more  \nb more  \n"


def test_more_best_than_beams_are_refused():
    message = fails("client", "m", "--n-best", 3, "--beam-size", 2, input="a\n")
    assert message == "--n-best must be at most the beam size, 2. Received: 3"
