"""The client and its command against a model server: batches, order and errors."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from support.command_line import fails, succeeds

from keras_transformer.serving import connect

pytestmark = pytest.mark.once
LINES = ["bad cab", "", "fed a deaf face", "dab"]


def test_requests_at_the_same_time_share_batches_and_keep_their_answers(server, client):
    def translate(text):
        return connect("model", server.rest).translate([text])[0].text

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(translate, LINES * 8))
    assert answers == [x.text for x in client.translate(LINES)] * 8
    assert max(requests.get(f"{server.rest}/stand_in/batch_sizes").json()[:-1]) > 1


def test_the_command_translates_a_file_in_order(server, client, tmp_path):
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    arguments = ["client", "model", tmp_path / "in", "--address", server.rest, "--batch-size", 3]
    succeeds(*arguments, "--output", tmp_path / "out")
    expected = [x.text for x in client.translate(LINES)]
    assert (tmp_path / "out").read_text().splitlines() == expected
    found = succeeds(*arguments, "--n-best", 2, "--scores").splitlines()
    best = client.translate_nbest(LINES, 2)
    assert found[:2] == [f"{x.score:.4f}\t{x.text}" for x in best[0]]
    assert len(found) == 2 * len(LINES) and found[3] == "-inf\t"


def test_wrong_uses_of_the_command_are_one_line(server, client, tmp_path):
    (tmp_path / "in").write_text("a\n")
    where = [tmp_path / "in", "--address", server.rest]
    for arguments, message in (
        (["other", *where, "--retries", 0], "not found for request: Latest(other)"),
        (["model", *where, "--model-version", 7, "--retries", 0], "request: Specific(model, 7)"),
        (["model", *where, "--n-best", "5"], "number of beams on"),
    ):
        assert message in fails("client", *arguments)
