"""One exported model for all tests, and what TensorFlow answered, on any backend."""

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


@dataclass
class Exporting:
    """What exporting_process.py has left in a folder."""

    folder: Path
    answers: dict[str, Any]


@pytest.fixture(scope="session", name="exporting")
def exporting_fixture(tmp_path_factory: pytest.TempPathFactory) -> Exporting:
    """Runs exporting_process.py once; `scripts/test` lets all backends share what it leaves."""
    shared = os.environ.get("KERAS_TRANSFORMER_SHARED")
    folder = Path(shared) if shared else tmp_path_factory.mktemp("exporting")
    answers = folder / "answers.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            _run(folder)
    return Exporting(folder, json.loads(answers.read_text(encoding="utf-8")))


def _run(folder: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "support.exporting_process", folder],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        },
    )
    assert process.returncode == 0, process.stderr[-4000:]
