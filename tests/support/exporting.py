"""One exported model for all tests, and what TensorFlow answered, on any backend."""

import fcntl
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from support.command_line import python


@dataclass
class Exporting:
    """What exporting_process.py has left in a folder. `other` has the answers for slow tests."""

    folder: Path

    @cached_property
    def answers(self) -> dict[str, Any]:
        return self._answers("first")

    @cached_property
    def other(self) -> dict[str, Any]:
        return self._answers("other")

    def _answers(self, part: str) -> dict[str, Any]:
        """Runs a part once; `scripts/test` lets all backends share what it leaves."""
        answers = self.folder / f"{part}.json"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not answers.exists():
                words = "-m", "support.exporting_process", self.folder, part
                python(*words, KERAS_BACKEND="tensorflow")
        return json.loads(answers.read_text(encoding="utf-8"))


@pytest.fixture(scope="session", name="exporting")
def exporting_fixture(tmp_path_factory: pytest.TempPathFactory) -> Exporting:
    shared = os.environ.get("KERAS_TRANSFORMER_SHARED")
    exporting = Exporting(Path(shared) if shared else tmp_path_factory.mktemp("exporting"))
    assert exporting.answers
    return exporting
