"""What nobody should send to an exported model: each request gets an answer or a clear error."""

import math

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


def test_each_hostile_text_gets_in_a_batch_what_it_gets_alone(client):
    texts = list(HOSTILE.values())
    together = client.translate(texts)
    for name, text, found in zip(HOSTILE, texts, together, strict=True):
        (alone,) = client.translate([text])
        assert math.isfinite(alone.score), name
        assert is_same(found, alone), name


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
