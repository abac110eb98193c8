"""The model server by REST: its protocol, its batches, and the command line against it."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from click.testing import CliRunner

from keras_transformer.cli import main
from keras_transformer.serving import connect

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def url(server):
    """Of the model, once it is loaded."""
    connect("model", server.rest, retries=20).translate(["a"])
    return f"{server.rest}/v1/models/model"


def ask(url, body, signature="serving_default"):
    return requests.post(f"{url}:predict", json={"signature_name": signature, **body})


def test_columns_in_give_columns_out(url):
    columns = {"translation": ["b a", ""], "score": [-2.0, 0.0]}
    for inputs in (["a b", ""], {"text": ["a b", {"b64": ""}]}):
        assert ask(url, {"inputs": inputs}).json() == {"outputs": columns}
    ids = {"source_ids": [[1, 2]], "target_ids": [[0, 4]]}
    one_hot = [[[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]]
    assert ask(url, {"inputs": ids}, "encode_tokens").json() == {"outputs": one_hot}


def test_what_json_cannot_say_is_written_as_the_real_server_does(url):
    inputs = {"text": ["a"] * 2, "beam_size": [1, 2], "length_penalty": [0.5, 1], "max_length": [1]}
    inputs["max_length"] *= 2
    answer = ask(url, {"inputs": inputs}, "translate_nbest")
    assert b"-Infinity" in answer.content
    raw = requests.post(f"{url}:predict", data=b'{"inputs": ["\xff b"]}')
    assert b'"b \xff"' in raw.content


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error"),
        (b"[1]", "Is not object"),
        (b"[" * 100_000, "JSON Parse error"),
        (b"{}", "Missing 'inputs' or 'instances' key"),
        (b'{"inputs": [1]}', "1 is not of expected type: string"),
        (b'{"inputs": ["a", ["b"]]}', "unexpected"),
        (b'{"inputs": "a"}', "at least one dimension"),
        (b'{"inputs": [{"b64": "?"}]}', "Unable to base64 decode"),
        (b'{"inputs": ["\\ud800"]}', "surrogate pair"),
        (b'{"inputs": ["a"], "signature_name": 1}', "must be a string"),
        (b'{"inputs": ["a"], "signature_name": "x"}', '"x" not found in signature def'),
        (b'{"inputs": {"source": ["a"]}, "signature_name": "score"}', "Missing named input"),
        (
            b'{"inputs": {"source": ["a"], "target": []}, "signature_name": "score"}',
            "equal 0th-dimension size",
        ),
    ],
)
def test_bad_requests_are_refused_with_a_reason(url, body, message):
    answer = requests.post(f"{url}:predict", data=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_unknown_places_are_not_found(server, url):
    for path, status in (
        ("/v1/models/other:predict", 404),
        ("/v1/models/model/versions/7:predict", 404),
        ("/v1/models/model:translate", 400),
    ):
        assert requests.post(server.rest + path, json={"inputs": ["a"]}).status_code == status
    assert requests.get(f"{server.rest}/v1/models/other").status_code == 404
    assert requests.get(f"{url}/versions/7").status_code == 404


def test_metadata_names_all_signatures(url):
    metadata = requests.get(f"{url}/metadata").json()
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert {"serving_default", "translate_nbest", "score", "encode_tokens"} <= set(signatures)
    assert signatures["serving_default"]["inputs"]["text"]["dtype"] == "DT_STRING"


def test_requests_at_the_same_time_share_batches_and_keep_their_answers(server, url):
    def translate(worker):
        client = connect("model", server.rest, retries=20)
        texts = [f"{worker} {number}" for number in range(20)]
        return [client.translate([text])[0].text for text in texts]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(translate, range(8)))
    assert answers == [[f"{n} {worker}" for n in range(20)] for worker in range(8)]
    sizes = requests.get(f"{server.rest}/stand_in/batch_sizes").json()
    assert 1 < max(sizes) <= 8


def test_a_request_may_not_be_larger_than_a_batch(url):
    answer = ask(url, {"inputs": ["a"] * 9})
    assert answer.status_code == 400
    assert answer.json() == {"error": "Task size 9 is larger than maximum input batch size 8"}


def test_the_command_translates_a_file_in_order(server, url, tmp_path):
    lines = [f"{n} x" for n in range(29)] + [""]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    arguments = ["client", "model", str(tmp_path / "in"), "--address", server.rest]
    arguments += ["--batch-size", "8"]
    result = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out").read_text().splitlines() == [*(f"x {n}" for n in range(29)), ""]
    result = CliRunner().invoke(main, [*arguments, "--n-best", "2", "--scores"])
    found = result.stdout.splitlines()
    assert found[:2] == ["-2.0000\tx 0", "-3.0000\tx 0 again"]
    assert len(found) == 60


def test_wrong_uses_of_the_command_are_one_line(server, url, tmp_path):
    (tmp_path / "in").write_text("a\n")
    where = [str(tmp_path / "in"), "--address", server.rest]
    for arguments, message in (
        (["other", *where], f"Error: {server.rest} has no model 'other'"),
        (["model", *where, "--model-version", "7"], "does not serve version 7 of 'model', only"),
        (["model", *where, "--n-best", "5"], "number of beams on"),
        (["model", *where, "--n-best", "3", "--beam-size", "2"], "--n-best must be at most"),
    ):
        result = CliRunner().invoke(main, ["client", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr.splitlines()[-1]


def test_a_newer_version_replaces_the_old_and_a_broken_one_does_not(server, url):
    """The last test here: the server goes on with version 2."""
    for version, ending in (("2", "AVAILABLE"), ("3", "END")):
        os.rename(server.folder / version, server.folder / "model" / version)
        state = ""
        while state not in ("AVAILABLE", "END"):
            time.sleep(0.1)
            statuses = requests.get(url).json()["model_version_status"]
            state = statuses[0]["state"] if statuses[0]["version"] == version else ""
        assert state == ending
    assert '"absent" not found' in statuses[0]["status"]["error_message"]
    assert [status["state"] for status in statuses] == ["END", "AVAILABLE", "END"]
    assert connect("model", server.rest).translate(["a b"])[0].text == "b a"
