"""A SavedModel is served by a model server, and translates in a C program without Python.

The requests to the server are those of docs/how-to/export-saved-model.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests
from support.served_model import serving

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "how-to" / "export-saved-model.md"
LINES = ["bad cab", "", "fed a deaf face", "dab"]
BATCHING = """
max_batch_size { value: 1000 }
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    """A model server in a process of its own, with the exported model."""
    batching = tmp_path_factory.mktemp("served") / "batching.txt"
    batching.write_text(BATCHING)
    with serving(exported.version.parent, batching) as started:
        yield started


def translations(server, lines):
    url = f"{server.rest}/v1/models/model:predict"
    answer = requests.post(url, json={"inputs": {"text": lines}})
    return answer.json()["outputs"]["translation"]


def test_documented_requests_get_the_same_translations(server):
    section = PAGE.read_text("utf-8").split("## Ask the server")[1].split("\n## ")[0]
    found = []
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        code = code.replace("http://localhost:8501", server.rest).replace("/quickstart:", "/model:")
        code = code.replace("localhost:8500", server.grpc).replace('"quickstart"', '"model"')
        code = code.replace("twenty-six", "bad cab").replace("thirty-one", "dab")
        shell = ["bash", "-c"] if language == "bash" else [sys.executable, "-c"]
        child = subprocess.run([*shell, code], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr[-4000:]
        found.append(child.stdout)
    curl, rest, grpc = found
    expected = json.loads(curl)["outputs"]
    assert len(expected["translation"]) == len(expected["score"]) == 1
    (text,) = expected["translation"]
    best, n_best = rest.splitlines()
    assert best.startswith(f"[{text!r}, ") and n_best.startswith(f"[{text!r}, ")
    assert grpc == f"[{text!r}]\n"


def test_requests_at_the_same_time_share_batches_and_keep_their_answers(server):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda x: translations(server, [x]), LINES * 8))
    assert answers == [[x] for x in translations(server, LINES)] * 8
    assert max(requests.get(f"{server.rest}/stand_in/batch_sizes").json()[:-1]) > 1


def package_folder(name: str) -> Path:
    return Path(find_spec(name).submodule_search_locations[0])


def output_of(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def test_the_c_program_translates_lines_without_python(exported, server, tmp_path):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    program, tensorflow = tmp_path / "translate", package_folder("tensorflow")
    flags = "-std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror".split()
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    output_of(
        "cc", *flags, f"-I{tensorflow}/include", "-o", program, TESTS / "support" / "translate.c",
        f"-L{tensorflow}", *libraries, f"-Wl,-rpath,{tensorflow}",
    )  # fmt: skip
    linked = output_of("ldd", program, text=True)
    assert "libtensorflow_cc.so.2" in linked
    assert "libpython" not in linked and "not found" not in linked

    kernels = package_folder("tensorflow_text") / "python/ops/_sentencepiece_tokenizer.so"
    model = exported.version
    signature = ["--dir", model, "--tag_set", "serve", "--signature_def", "serving_default"]
    shown = output_of("saved_model_cli", "show", *signature, text=True)
    name = r"\['{}'\] tensor_info:.*?name: (\S+):(\d+)"
    (text, _), translation = (
        re.search(name.format(key), shown, re.DOTALL).groups() for key in ("text", "translation")
    )
    lines = [f"bad {number} {'cab ' * (number % 7)}".encode() for number in range(70)]
    lines[3], lines[4] = b"", "ÿ a".encode()
    found = output_of(
        program, model, kernels, text, *translation,
        input=b"\n".join(lines),  # the last line has no end
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": os.defpath},
    )  # fmt: skip
    assert found.decode().splitlines() == translations(server, [x.decode() for x in lines])
