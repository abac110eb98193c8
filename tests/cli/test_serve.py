"""The command `serve` in a process of its own, as existing clients use it."""

import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI
from support.command_line import fails
from support.running_server import serving

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "fixtures" / "trained_run"
SHIPPED = ROOT / "saved_models" / "tatoeba_en_de"
LINES = (SHIPPED / "text" / "test.en").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The process that serves the model of the package, and its address."""
    run = shutil.copytree(SHIPPED, tmp_path_factory.mktemp("served") / "run")
    with serving(sys.executable, ROOT / "keras_transformer_cli.py", "serve", run) as served:
        yield served


def post(url, q, **body):
    body = {"q": q, "source": "en", "target": "de", **body}
    return requests.post(f"{url}/translate", json=body, timeout=60)


def test_clients_of_libretranslate_work_unchanged(server):
    _, url = server
    client = LibreTranslateAPI(url)
    assert [x["code"] for x in client.languages()] == ["de", "en"]
    assert client.detect("Hello")[0]["language"] == "en"
    expected = client.translate("Where is the train station?", "en", "de")
    assert expected == "Wo ist der Bahnhof?"
    assert client.translate("Where is the train station?", "auto", "de") == expected
    where = {"base_url": f"{url}/", "custom_url": f"{url}/"}
    other = LibreTranslator(source="en", target="de", api_key="any", **where)
    assert other.translate("Where is the train station?") == expected


def test_32_clients_at_the_same_time_get_the_texts_of_single_ones(server):
    _, url = server
    lines = LINES[:32]
    single = [post(url, line).json() for line in lines]
    with ThreadPoolExecutor(32) as pool:
        assert [*pool.map(lambda line: post(url, line).json(), lines)] == single
    assert post(url, lines).json()["translatedText"] == [x["translatedText"] for x in single]


def test_a_text_without_spaces_holds_nobody(server):
    _, url = server
    assert post(url, "x" * 300_000).status_code == 413
    assert post(url, "x" * 30_000).status_code == 400
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(post, url, "é" * 1500)
        assert requests.get(f"{url}/health", timeout=5).json() == {"status": "ok"}
        assert long.result().status_code == 200


def test_sigterm_answers_what_is_in_flight_and_ends(server):
    process, url = server
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(post, url, LINES[n : n + 10]) for n in range(4)]
        waiting = 'keras_transformer_waiting_sentences{pair="en-de"} 40.0'
        while waiting not in requests.get(f"{url}/metrics").text and not asked[0].done():
            pass
        process.send_signal(signal.SIGTERM)
        assert {x.result().status_code for x in asked} == {200}
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((RUN, RUN), "each run must have another pair of languages. Received"),
        ((RUN, "--glossary", "cars"), "--glossary must be NAME=FILE. Received: cars"),
        ((RUN, "--api-keys", os.devnull), "must have a key on a line"),
        (("missing",), "missing"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    assert message in fails("serve", *arguments)
