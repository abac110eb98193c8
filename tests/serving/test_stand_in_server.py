"""The requests of docs/how-to/export-saved-model.md to a model server, and batches of requests."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

pytestmark = pytest.mark.slow
LINES = ["bad cab", "", "fed a deaf face", "dab"]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "export-saved-model.md"


@pytest.fixture(scope="module")
def documented(server):
    """What each code block of the page's section prints, in this order."""
    section = PAGE.read_text("utf-8").split("## Ask the server")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    found = []
    for language, code in blocks:
        code = code.replace("http://localhost:8501", server.rest).replace("/quickstart:", "/model:")
        code = code.replace("localhost:8500", server.grpc).replace('"quickstart"', '"model"')
        code = code.replace("twenty-six", "bad cab").replace("thirty-one", "dab")
        shell = ["bash", "-c"] if language == "bash" else [sys.executable, "-c"]
        child = subprocess.run([*shell, code], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr[-4000:]
        found.append(child.stdout)
    return found


def test_documented_requests_get_the_same_translations(documented):
    curl, rest, grpc = documented
    expected = json.loads(curl)["outputs"]
    assert len(expected["translation"]) == len(expected["score"]) == 1
    (text,) = expected["translation"]
    best, n_best = rest.splitlines()
    assert best.startswith(f"[{text!r}, ") and n_best.startswith(f"[{text!r}, ")
    assert grpc == f"[{text!r}]\n"


def test_requests_at_the_same_time_share_batches_and_keep_their_answers(server):
    def translate(lines):
        body = {"inputs": {"text": lines}}
        answer = requests.post(f"{server.rest}/v1/models/model:predict", json=body)
        return answer.json()["outputs"]["translation"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(translate, [[x] for x in LINES * 8]))
    assert answers == [[x] for x in translate(LINES)] * 8
    assert max(requests.get(f"{server.rest}/stand_in/batch_sizes").json()[:-1]) > 1
