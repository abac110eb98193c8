"""The comparison of architectures, with a run of seconds."""

import sys
from pathlib import Path

import pytest
from support import tiny_run

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import architectures  # noqa: E402

from keras_transformer.translation.open_run import open_model


@pytest.mark.slow
def test_a_row_has_the_scores_and_the_speeds_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(architectures, "FEWEST_SENTENCES", 1)
    run = tiny_run.begin(tmp_path)
    (row,) = architectures.compare([run.directory], rounds=1)
    assert (row["architecture"], row["steps"]) == ("transformer", tiny_run.STEPS)
    assert row["parameters"] == open_model(run).count_params()
    assert min(row[name] for name in ("training", "greedy", "beam", "minutes")) > 0
    assert all(0 <= row[name] <= 100 for name in ("greedy_bleu", "beam_bleu"))
    assert list(row["by_length"]) == ["0-5"]
