"""Model servers for all tests of this folder, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.exporting import Exporting, exporting_fixture  # noqa: F401

from keras_transformer.serving import ServingClient, connect

TESTS = Path(__file__).parents[1]
BATCHING = """
max_batch_size { value: 1000 }
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@dataclass
class Server:
    """Where it listens."""

    rest: str
    grpc: str


@contextmanager
def serving(folder: Path, model: Path) -> Iterator[Server]:
    """The stand-in server of a model, in batches. `folder` gets its files."""
    (folder / "batching.txt").write_text(BATCHING)
    flags = ["--model_name", "model", "--model_base_path", model, "--port=0", "--rest_api_port=0"]
    flags += ["--batching_parameters_file", folder / "batching.txt"]
    search_path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "support.stand_in_server", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "KERAS_BACKEND": "tensorflow",
                "PYTHONPATH": os.pathsep.join(search_path),
            },
        ) as process,
    ):
        line = process.stdout.readline()
        assert line, (folder / "errors").read_text()[-4000:]
        ports = json.loads(line)
        yield Server(f"http://localhost:{ports['rest_api_port']}", f"localhost:{ports['port']}")
        process.kill()


@pytest.fixture(scope="session")
def server(exporting: Exporting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the model of exporting_process.py."""
    with serving(tmp_path_factory.mktemp("served"), exporting.folder / "model") as started:
        yield started


@pytest.fixture(scope="session")
def client(server: Server) -> ServingClient:
    """A client of the server, which has loaded the model."""
    client = connect("model", server.rest, retries=20)
    client.translate(["bad"])
    return client


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[Server]]:
    """What to serve by that a test has made itself."""
    return serving
