"""The stand-in server in a process of its own, for tests and scripts/bench/serving_load.py."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]


class Server(NamedTuple):
    """Where it listens."""

    rest: str
    grpc: str


@contextmanager
def serving(model: Path, batching: Path, **environment: str) -> Iterator[Server]:
    """Serves the newest version in a folder, as "model", in batches by a file of parameters."""
    flags = ["--model_name", "model", "--model_base_path", model, "--port=0", "--rest_api_port=0"]
    search_path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment |= {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(search_path)}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "support.stand_in_server", *flags]
            + ["--batching_parameters_file", batching],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                raise RuntimeError(f"the server died:\n{errors.read()[-4000:]}")
            ports = json.loads(line)
            yield Server(f"http://localhost:{ports['rest_api_port']}", f"localhost:{ports['port']}")
        finally:
            process.kill()
