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

TESTS = Path(__file__).parents[1]
BATCHING = """
max_batch_size { value: 8 }
batch_timeout_micros { value: 20000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@dataclass
class Server:
    """Where it listens, and its folder: model/ is served, 2 and 3 can be moved there."""

    folder: Path
    rest: str
    grpc: str


@contextmanager
def serving(module: str, folder: Path, *arguments: str | Path) -> Iterator[Server]:
    """A module of tests/support that serves a model, or makes one and serves it."""
    search_path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", f"support.{module}", *arguments],
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
        yield Server(
            folder, f"http://localhost:{ports['rest_api_port']}", f"localhost:{ports['port']}"
        )
        process.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the model of reversing_model.py, in batches."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "batching.txt").write_text(BATCHING)
    flags = ["--batching_parameters_file", folder / "batching.txt"]
    with serving("reversing_model", folder, folder, *flags) as started:
        yield started


@pytest.fixture(scope="session")
def exporting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the model of exported_model.py, each request alone."""
    folder = tmp_path_factory.mktemp("exported")
    with serving("exported_model", folder, folder) as started:
        yield started


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[Server]]:
    """What to serve by that a test has made itself."""
    return serving
