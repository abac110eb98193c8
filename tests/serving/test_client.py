"""The client against a scripted endpoint: what it asks for, and when it asks again."""

import math

import pytest

from keras_transformer import serving
from keras_transformer.errors import UserError
from keras_transformer.serving import ServedTranslation, ServingClient, TemporaryError

pytestmark = pytest.mark.once
AWAY = TemporaryError("here cannot be reached: Connection refused")


class Scripted:
    """Answers the first requests with errors; keeps what was asked for."""

    address = "here"

    def __init__(self, *errors, outputs=None):
        self.errors = list(errors)
        self.outputs, self.requests = outputs, []

    def predict(self, signature, inputs):
        self.requests.append((signature, inputs))
        if self.errors:
            raise self.errors.pop(0)
        texts = [text.upper() for text in inputs["text"]]
        default = {"translation": texts, "score": [-1.0] * len(texts)}
        return self.outputs or default


@pytest.fixture
def pauses(monkeypatch):
    """How long the client slept, in seconds."""
    slept = []
    monkeypatch.setattr(serving.time, "sleep", slept.append)
    return slept


def test_translations_come_in_the_order_of_the_sentences():
    endpoint = Scripted()
    found = ServingClient(endpoint).translate(["b", "a"])
    assert found == [ServedTranslation("B", -1.0), ServedTranslation("A", -1.0)]
    assert endpoint.requests == [("serving_default", {"text": ["b", "a"]})]


def test_settings_that_are_not_given_are_sent_as_minus_one_for_each_row():
    rows = {"translations": [["x"], ["y"]], "scores": [[-1.0], [-2.0]]}
    endpoint = Scripted(outputs=rows)
    found = ServingClient(endpoint).translate_nbest(["a", "b"], length_penalty=0)
    assert found == [[ServedTranslation("x", -1.0)], [ServedTranslation("y", -2.0)]]
    ((signature, inputs),) = endpoint.requests
    assert signature == "translate_nbest"
    assert inputs == {
        "text": ["a", "b"],
        "beam_size": [-1, -1],
        "length_penalty": [0.0, 0.0],
        "max_length": [-1, -1],
    }
    assert all(isinstance(value, float) for value in inputs["length_penalty"])


def test_padding_of_short_rows_is_left_out_and_more_than_all_beams_are_refused():
    rows = {
        "translations": [["x", "", ""], ["y", "z", "w"]],
        "scores": [[-1.0, -math.inf, -math.inf], [-2.0, -3.0, -4.0]],
    }
    client = ServingClient(Scripted(outputs=rows))
    found = client.translate_nbest(["a", "b"], 2, beam_size=3)
    assert [[t.text for t in best] for best in found] == [["x"], ["y", "z"]]
    with pytest.raises(UserError, match="number of beams on here is 3. .* n_best=4"):
        client.translate_nbest(["a", "b"], 4)


@pytest.mark.parametrize(
    "option",
    [{"n_best": -1}, {"n_best": 0}, {"beam_size": 0}, {"max_length": -3}]
    + [{"length_penalty": x} for x in (-0.5, 10.5, math.inf, math.nan)],
)
def test_search_options_out_of_range_are_not_sent(option):
    endpoint = Scripted()
    with pytest.raises(ValueError, match=next(iter(option))):
        ServingClient(endpoint).translate_nbest(["a"], **option)
    assert not endpoint.requests


def test_requests_are_sent_again_after_growing_pauses(pauses):
    endpoint = Scripted(*[AWAY] * 4)
    with pytest.warns(UserWarning, match="cannot be reached.*; next attempt in"):
        assert ServingClient(endpoint).translate(["a"]) == [ServedTranslation("A", -1.0)]
    assert len(endpoint.requests) == 5
    assert all(w / 2 <= pause <= w for w, pause in zip((0.5, 1, 2, 4), pauses, strict=True))


@pytest.mark.filterwarnings("ignore:.*next attempt")
def test_the_client_gives_up_after_its_tries(pauses):
    endpoint = Scripted(*[AWAY] * 9)
    with pytest.raises(UserError, match=r"^here cannot .* \(after 2 retries\). Start a server"):
        ServingClient(endpoint, retries=2).translate(["a"])
    assert len(endpoint.requests) == 3


def test_a_refusal_is_final(pauses):
    with pytest.raises(UserError, match="^no$"):
        ServingClient(Scripted(UserError("no"))).translate(["a"])
    assert pauses == []


def test_a_stream_is_cut_into_requests_and_another_search_goes_by_its_signature():
    endpoint = Scripted()
    found = list(ServingClient(endpoint).stream(iter("abcde"), batch_size=2, beam_size=None))
    assert [best[0].text for part in found for best in part] == list("ABCDE")
    assert [signature for signature, _ in endpoint.requests] == ["serving_default"] * 3
    assert max(len(inputs["text"]) for _, inputs in endpoint.requests) == 2
    endpoint = Scripted(outputs={"translations": [["x", "y"]], "scores": [[-1.0, -2.0]]})
    for arguments in ({"n_best": 2}, {"beam_size": 2}, {"length_penalty": 0.0}):
        list(ServingClient(endpoint).stream(["a"], **arguments))
    assert [signature for signature, _ in endpoint.requests] == ["translate_nbest"] * 3


@pytest.mark.parametrize(
    "answer",
    ["nonsense", ["x"], 3]
    + [{"translation": x, "score": y} for x, y in ((["x"] * 2, [-1.0] * 2), ([], []), (["x"], []))]
    + [{"translation": x, "score": [-1.0]} for x in ("x", [None], ["\ud800"])]
    + [{"translation": ["x"], "score": x} for x in (["-1"], [10**400])]
    + [{"translation": ["x"]}]
    + [
        {"translations": x, "scores": y}
        for x, y in (("x", "y"), ([["x"]], [-1.0]), ([["x"]], [[-1.0, -2.0]]), (["x"], [[-1.0]]))
    ],
)
def test_an_answer_of_another_form_is_an_error(answer):
    client = ServingClient(Scripted(outputs=answer))
    is_nbest = isinstance(answer, dict) and "translations" in answer
    names = "translations and scores" if is_nbest else "translation and score"
    with pytest.raises(UserError, match=f"must answer with {names} of each sentence"):
        (client.translate_nbest if is_nbest else client.translate)(["a"])


def test_a_string_in_place_of_a_list_is_not_sent():
    client = ServingClient(endpoint := Scripted())
    for translate in (client.translate, client.translate_nbest):
        with pytest.raises(TypeError, match="`texts` must be a list of strings. Received: 'one'"):
            translate("one")
    assert not endpoint.requests
