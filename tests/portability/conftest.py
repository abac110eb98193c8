"""Results of `conformance`, which start three backends: `scripts/test` computes each only once."""

import fcntl
import json
import os
from pathlib import Path

import pytest


@pytest.fixture
def once(tmp_path_factory):
    """Returns a function that gives `make(folder)`, or what another backend's tests made."""

    def read(name, make):
        shared = os.environ.get("KERAS_TRANSFORMER_SHARED")
        folder = Path(shared or tmp_path_factory.mktemp("conformance"), name)
        folder.mkdir(exist_ok=True)
        file = folder / "result.json"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_text(json.dumps(make(folder)))
        return json.loads(file.read_text())

    return read
