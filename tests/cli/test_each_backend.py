"""The path of a newcomer, on each backend: train, translate, score and evaluate."""

import json

import pytest
from support.command_line import succeeds

pytestmark = pytest.mark.each_backend


def test_a_run_is_trained_translated_and_evaluated(finished, run):
    translations = succeeds("translate", run, "--beam-size", 1, input="one two\n\nnine\n")
    assert len(translations.splitlines()) == 3
    data = finished / "data"
    assert "perplexity" in succeeds("score", run, data / "val.en", data / "val.de", "--summary")
    assert "BLEU" in succeeds("evaluate", run, "--beam-size", 1)
    assert len(json.loads((run / "scores.json").read_text())) == 2
