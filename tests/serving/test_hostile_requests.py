"""What nobody should send to an exported model: each request gets an answer or a clear error."""

import math

import numpy as np
import pytest
import requests
from support.hostile_text import TEXT, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.once]

TIE = 1e-4
HOSTILE = {
    "nothing": "",
    "white space": " \t \u3000 ",
    "100 kB": "bad cab " * 12_500,
    "100 kB without a space": "abc" * 33_000,
    "no UTF-8": b"\xff\xfe bad \xc3",
    "a zero": "bad\0cab",
    "line ends": "bad\ncab\r\n",
    "unknown characters": "xyz XYZ 123",
    "emoji": "\U0001f469\u200d\U0001f4bb \U0001f600",
    "Korean": "안녕하세요 세계",
    "right to left": "שלום \u202eعالم",
    "pieces of the vocabulary": "<s> </s> <pad> <unk> ▁",
    "combining": "a" + "\u0301" * 500,
}


def is_same(found, expected):
    """The same text, and a score that rounding may change."""
    return found.text == expected.text and abs(found.score - expected.score) < TIE


def mixed_sentences(count):
    rng = np.random.default_rng(0)
    words = "bad cab fed deaf face xyz 안녕".split()
    return [" ".join(rng.choice(words, rng.integers(0, 30))) for _ in range(count)]


def test_each_hostile_text_gets_in_a_batch_what_it_gets_alone(client):
    texts = list(HOSTILE.values())
    together = client.translate(texts)
    for name, text, found in zip(HOSTILE, texts, together, strict=True):
        (alone,) = client.translate([text])
        assert math.isfinite(alone.score), name
        assert is_same(found, alone), name


def test_blank_texts_have_an_empty_and_certain_translation(client):
    for found in client.translate([HOSTILE["nothing"], HOSTILE["white space"]]):
        assert found == ("", 0.0)


def test_a_thousand_sentences_of_all_lengths_get_what_they_get_alone(client):
    sentences = mixed_sentences(1000)
    together = client.translate(sentences)
    assert len(together) == 1000
    for number in range(0, 1000, 40):
        assert is_same(together[number], *client.translate([sentences[number]])), number


def test_rows_of_other_searches_do_not_disturb_each_other(server):
    """Each row with settings of its own, in a batch and alone."""
    url = f"{server.rest}/v1/models/model:predict"
    rows = {
        "text": ["bad cab", "bad cab", "", "fed", "xyz", "deaf"],
        "beam_size": [1, -1, 5, 4, 1_000_000, 0],
        "length_penalty": [0.0, -1.0, 1.0, 0.6, 0.0, 0.0],
        "max_length": [5, -1, 3, 1000, 1, 0],
    }

    def ask(inputs):
        body = {"signature_name": "translate_nbest", "inputs": inputs}
        return requests.post(url, json=body).json()["outputs"]

    together = ask(rows)
    for row in range(6):
        alone = ask({name: values[row : row + 1] for name, values in rows.items()})
        scores, found = alone["scores"][0], together["scores"][row]
        assert found[len(scores) :] == [-math.inf] * (len(found) - len(scores))
        for i, score in enumerate(scores):
            assert found[i] == pytest.approx(score, abs=TIE) or score == -math.inf
        assert together["translations"][row][0] == alone["translations"][0][0]


def test_a_request_of_no_sentences_gets_no_translations(server):
    url = f"{server.rest}/v1/models/model:predict"
    answer = requests.post(url, json={"inputs": []})
    assert answer.json() == {"outputs": {"translation": [], "score": []}}
    numbers = {"beam_size": [], "length_penalty": [], "max_length": []}
    body = {"signature_name": "translate_nbest", "inputs": {"text": [], **numbers}}
    assert requests.post(url, json=body).status_code == 200
    body = {"signature_name": "score", "inputs": {"source": [], "target": []}}
    assert requests.post(url, json=body).json() == {
        "outputs": {"log_probability": [], "length": []}
    }


@pytest.mark.parametrize(
    ("source", "target"),
    [("", ""), ("bad", ""), ("", "dab"), ("xyz", "안녕"), ("bad " * 5000, "dab")],
)
def test_odd_pairs_have_a_score_or_none(server, source, target):
    url = f"{server.rest}/v1/models/model:predict"
    inputs = {"source": [source, "bad"], "target": [target, "dab"]}
    answer = requests.post(url, json={"signature_name": "score", "inputs": inputs})
    outputs = answer.json()["outputs"]
    odd, ordinary = outputs["log_probability"]
    assert math.isnan(odd) == (len(source) > 1000)
    assert ordinary < 0
    assert outputs["length"][0] >= 1


@pytest.mark.parametrize("ids", [[-1], [40], [2_000_000_000]])
def test_ids_outside_of_the_vocabulary_do_not_stop_the_server(server, client, ids):
    url = f"{server.rest}/v1/models/model:predict"
    body = {
        "signature_name": "encode_tokens",
        "inputs": {"source_ids": [ids], "target_ids": [[2]]},
    }
    answer = requests.post(url, json=body)
    assert answer.status_code == 400
    assert "source_ids must be from 0 to 39" in answer.json()["error"]
    assert client.translate(["bad"])[0].score < 0


@pytest.mark.parametrize("name", TEXT)
def test_each_line_of_a_hostile_file_is_answered(client, name):
    lines = lines_of(name)[:500]
    found = client.translate(lines)
    assert len(found) == len(lines)
    assert all(
        translation.text == ""
        for line, translation in zip(lines, found, strict=True)
        if not line.strip()
    )
