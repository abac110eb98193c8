"""What the load test counts; how fast the server is is no test's affair."""

import sys
from pathlib import Path

import pytest

from keras_transformer.errors import UserError
from keras_transformer.serving import ServedTranslation

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import serving_load  # noqa: E402
from serving_load import Server, outcome, put_under_load  # noqa: E402

EXPECTED = [("ein Hund", -1.0), ("der Hund", -1.00005), ("Hund", -2.0)]
SERVER = Server("http://localhost:1", "localhost:2")


@pytest.mark.parametrize(
    ("text", "score", "kind"),
    [
        ("ein Hund", -1.0, "identical"),
        ("ein Hund", -1.0005, "identical"),
        ("ein Hund", -1.1, "wrong"),
        ("der Hund", -1.00005, "tied"),
        ("Hund", -2.0, "wrong"),
        ("eine Katze", -1.0, "wrong"),
    ],
)
def test_an_answer_must_be_the_models_own_or_tie_with_it(text, score, kind):
    assert outcome(ServedTranslation(text, score), EXPECTED) == kind


@pytest.mark.parametrize(
    ("answer", "kind"), [(ServedTranslation("ein Hund", -1.0), "identical"), (None, "failed")]
)
def test_every_answer_of_every_client_is_counted(monkeypatch, answer, kind):
    asked = []

    class Client:
        def translate(self, sentences):
            asked.extend(sentences)
            if answer is None:
                raise UserError("away")
            return [answer]

    monkeypatch.setattr(serving_load, "connect", lambda *_, **__: Client())
    load, seconds = put_under_load(SERVER, "rest", [("a dog", EXPECTED)], 3, 0.05)
    assert load.outcomes == {kind: len(asked)}
    assert len(load.seconds) == len(asked) > 0
    assert load.problems == (["away"] * len(asked) if kind == "failed" else [])
    assert seconds >= 0.05
