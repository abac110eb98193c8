"""REST against a server of the standard library that gives scripted answers."""

import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from keras_transformer import serving
from keras_transformer.errors import UserError
from keras_transformer.serving import RestEndpoint, TemporaryError

pytestmark = pytest.mark.once


class _Drip(bytes):
    """Bytes that are sent one in a tenth of a second."""


class _Handler(BaseHTTPRequestHandler):
    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, body))
        time.sleep(self.server.delay)
        if self.server.status is None:  # hangs up
            return
        self.send_response(self.server.status)
        self.end_headers()
        parts = [self.server.answer]
        if isinstance(self.server.answer, _Drip):
            parts = [bytes([x]) for x in self.server.answer]
        for part in parts:
            self.wfile.write(part)
            time.sleep(0.1 * (len(parts) > 1))

    do_POST = _answer

    def log_message(self, *_):
        pass


@pytest.fixture
def script():
    """A server; set its status, answer (bytes) and delay (seconds)."""
    server = HTTPServer(("localhost", 0), _Handler)
    server.status, server.answer, server.delay = 200, b'{"outputs": {}}', 0
    server.requests = []
    server.address = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_names_the_signature_and_has_a_column_for_each_input(script):
    host_and_port = script.address.removeprefix("http://")
    endpoint = RestEndpoint("my model", host_and_port + "/", version=3)
    endpoint.predict("nbest", {"text": ["a", b"\xff", "한".encode()], "beam_size": [1, 2, 3]})
    ((method, path, body),) = script.requests
    assert (method, path) == ("POST", "/v1/models/my%20model/versions/3:predict")
    assert json.loads(body) == {
        "signature_name": "nbest",
        "inputs": {"text": ["a", {"b64": "/w=="}, {"b64": "7ZWc"}], "beam_size": [1, 2, 3]},
    }


def test_numbers_that_are_no_json_and_text_that_is_no_utf8_are_read(script):
    script.answer = b'{"outputs": {"scores": [-1.5, -Infinity, NaN], "text": ["a\xff"]}}'
    outputs = RestEndpoint("m", script.address).predict("s", {"text": ["a"]})
    assert outputs["scores"][:2] == [-1.5, -math.inf]
    assert math.isnan(outputs["scores"][2])
    assert outputs["text"] == ["a\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UserError),
        (404, TemporaryError),
        (429, TemporaryError),
        (500, UserError),
        (503, TemporaryError),
        (504, TemporaryError),
    ],
)
def test_errors_carry_the_servers_message(script, status, kind):
    script.status, script.answer = status, b'{ "error": "because" }'
    with pytest.raises(kind, match="because"):
        RestEndpoint("m", script.address).predict("s", {"text": ["a"]})


def test_silence_is_temporary(script):
    script.delay = 0.5
    with pytest.raises(TemporaryError, match="cannot be reached: .*timed out"):
        RestEndpoint("m", script.address, timeout=0.1).predict("s", {"text": ["a"]})


def test_a_server_that_is_away_or_hangs_up_is_temporary(script):
    script.status = None
    with pytest.raises(TemporaryError, match="cannot be reached"):
        RestEndpoint("m", script.address).predict("s", {"text": ["a"]})
    with pytest.raises(TemporaryError, match="^http://localhost:1 .*: .*Connection refused$"):
        RestEndpoint("m", "http://localhost:1").predict("s", {"text": ["a"]})


def test_time_and_size_of_an_answer_are_bounded(script, monkeypatch):
    script.answer = _Drip(b" " * 10)
    with pytest.raises(TemporaryError, match="timed out after 0.3 s"):
        RestEndpoint("m", script.address, timeout=0.3).predict("s", {"text": ["a"]})
    monkeypatch.setattr(serving, "_MOST_BYTES", 1000)
    script.answer = b'{"outputs": {}}' + b" " * 10**6
    assert RestEndpoint("m", script.address).predict("s", {"text": ["a"]}) == {}
    script.answer = b" " * 10**6 + b'{"outputs": {}}'
    with pytest.raises(UserError, match="answers 200"):
        RestEndpoint("m", script.address).predict("s", {"text": ["a"]})


@pytest.mark.parametrize("answer", [b"<html>Hello</html>", b'{"predictions": []}', b"[" * 100_000])
def test_an_answer_without_outputs_is_shown(script, answer):
    script.answer = answer
    with pytest.raises(UserError, match=r"answers 200: .*(Hello|predictions|\[\[)"):
        RestEndpoint("m", script.address).predict("s", {"text": ["a"]})
