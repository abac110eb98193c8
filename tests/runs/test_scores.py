"""The scores of a run."""

import hashlib
import json
from datetime import UTC, datetime
from multiprocessing import get_context

import pytest

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError


def test_every_score_is_kept_with_what_it_was_made_of(run):
    run.model_path.write_bytes(b"weights")
    before = datetime.now(UTC).replace(microsecond=0)
    given = {"split": "test", "metric": "BLEU", "signature": "nrefs:1"}
    for score in (41.0, 42.0):
        run.scores.add(score=score, options=SearchOptions(), **given)
    first, second = json.loads(run.scores_path.read_text())
    assert [first.pop("score"), second.pop("score")] == [41.0, 42.0]
    assert datetime.fromisoformat(first.pop("time")) >= before
    digest = hashlib.sha256(run.model_path.read_bytes()).hexdigest()
    made_with = {"checkpoint_sha256": digest, "beam_size": 4, "length_penalty": 0.6}
    assert first == {**given, **made_with}


def test_damaged_scores_are_refused(run):
    for content in (b"[{", b"[" * 100_000, b"\xff", b"{}", b"3"):
        run.scores_path.write_bytes(content)
        with pytest.raises(UserError, match="scores.json"):
            run.scores.entries()
        assert run.scores_path.read_bytes() == content


def test_scores_of_several_processes_are_all_kept(run):
    given = {"metric": "BLEU", "signature": ""}

    def add():
        for number in range(20):
            run.scores.add(score=number, split="test", options=SearchOptions(), **given)

    run.model_path.write_bytes(b"weights")
    children = [get_context("fork").Process(target=add) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert sorted(entry["score"] for entry in run.scores.entries()) == sorted([*range(20)] * 2)
