"""The stand-in server in a process of its own, for tests and scripts/bench/serving_load.py."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support import running_server

TESTS = Path(__file__).parents[1]


class Server(NamedTuple):
    """Where it listens."""

    rest: str
    grpc: str


@contextmanager
def serving(model: Path, batching: Path, **environment: str) -> Iterator[Server]:
    """Serves the newest version in a folder, as "model", in batches by a file of parameters."""
    command = [sys.executable, "-m", "support.stand_in_server", "--rest_api_port", "0"]
    flags = ["--model_name", "model", "--model_base_path", model]
    search_path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment |= {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(search_path)}
    words = *command, *flags, "--batching_parameters_file", batching
    settings = {"told": r"(\{.*port.*\})", "env": {**os.environ, **environment}}
    with running_server.serving(*words, **settings) as (_, found):
        ports = json.loads(found)
        yield Server(f"http://localhost:{ports['rest_api_port']}", f"localhost:{ports['port']}")
