"""What nobody should send to an exported model: each request gets an answer or a clear error."""

import base64
import json
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


def translated(server, texts):
    """The text and the score of each translation."""

    def encoded(content):
        return {"b64": base64.b64encode(content).decode()}

    body = json.dumps({"inputs": {"text": texts}}, default=encoded)
    answer = requests.post(f"{server.rest}/v1/models/model:predict", body).json()["outputs"]
    return [*zip(answer["translation"], answer["score"], strict=True)]


def test_each_hostile_text_gets_in_a_batch_what_it_gets_alone(server):
    texts = list(HOSTILE.values())
    together = translated(server, texts)
    for name, text, (found, score) in zip(HOSTILE, texts, together, strict=True):
        ((expected, expected_score),) = translated(server, [text])
        assert math.isfinite(expected_score), name
        assert found == expected and abs(score - expected_score) < TIE, name


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
def test_each_line_of_a_hostile_file_is_answered(server, name):
    lines = lines_of(name)[:500]
    found = zip(lines, translated(server, lines), strict=True)
    assert all(text == "" for line, (text, _) in found if not line.strip())
