"""The scores of a run."""

import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError


def add_score(run, score):
    run.scores.add(
        split="test",
        metric="BLEU",
        score=score,
        signature="nrefs:1",
        options=SearchOptions(),
    )


def test_every_score_is_kept_with_what_it_was_made_of(run):
    run.model_path.write_bytes(b"weights")
    before = datetime.now(UTC).replace(microsecond=0)
    add_score(run, 41.0)
    add_score(run, 42.0)
    first, second = json.loads(run.scores_path.read_text())
    assert [first.pop("score"), second.pop("score")] == [41.0, 42.0]
    assert datetime.fromisoformat(first.pop("time")) >= before
    assert first == {
        "split": "test",
        "metric": "BLEU",
        "signature": "nrefs:1",
        "checkpoint_sha256": hashlib.sha256(run.model_path.read_bytes()).hexdigest(),
        "beam_size": 4,
        "length_penalty": 0.6,
    }


@pytest.mark.parametrize("content", [b"[{", b"[" * 100_000, b"\xff", b"{}", b"3"])
def test_damaged_scores_are_refused(run, content):
    run.scores_path.write_bytes(content)
    with pytest.raises(UserError, match="scores.json"):
        run.scores.check()
    assert run.scores_path.read_bytes() == content


def test_a_read_only_run_is_refused_before_scoring(run, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=f"{run.directory} is read-only"):
        run.scores.check()


SCORING = """
import sys
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.runs.run import Run
run = Run.open(sys.argv[1])
for score in range(20):
    run.scores.add(split="test", metric="BLEU", score=score, signature="", options=SearchOptions())
"""


def test_scores_of_several_processes_are_all_kept(run):
    run.model_path.write_bytes(b"weights")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCORING, str(run.directory)]
    children = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert sorted(entry["score"] for entry in run.scores.entries()) == sorted([*range(20)] * 3)
