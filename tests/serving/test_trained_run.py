"""From training on this backend to the answers of a server: the translations stay what they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "data.generator.train=8000",
    "data.generator.validation=50",
    "data.generator.test=300",
    "tokenizer.vocabulary_size=128",
    "model.d_model=64",
    "model.num_heads=4",
    "model.d_ff=128",
    "training.steps=360",
    "training.tokens_per_batch=2048",
    "training.checkpoint_every=120",
    "training.peak_learning_rate=0.004",
)
# Difference of scores, in nats by length penalty: a tie, and the rounding of both to 4 decimals.
TIE = 2.5e-4


def command(*arguments):
    """Runs `keras-transformer` on the backend of this process; returns what it writes."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "keras_transformer_cli", *map(str, arguments)]
    child = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return child.stdout


def scored(output):
    """Pairs of score and translation, from lines of both."""
    pairs = [line.split("\t", 1) for line in output.splitlines()]
    return [(float(score), text) for score, text in pairs]


def test_a_server_translates_as_the_backend_that_trained(tmp_path, serve):
    run, model = tmp_path / "run", tmp_path / "model"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    command("train", "quickstart", "--run", run, *settings)
    command("export", run, "--format", "saved_model", "--output", model)
    text, references = run / "text" / "test.en", run / "text" / "test.de"
    ours = scored(command("translate", run, text, "--scores"))
    with serve(tmp_path, model) as server:
        where = ("--address", server.rest, "--retries", "20")
        served = scored(command("client", "model", text, *where, "--scores"))

    lines = references.read_text(encoding="utf-8").splitlines()
    correct = sum(line == found for line, (_, found) in zip(lines, ours, strict=True))
    assert correct > len(lines) / 10  # It has learned something: guessing hits none.
    unlike = 0
    for (our_score, our_text), (score, found) in zip(ours, served, strict=True):
        assert abs(our_score - score) < TIE
        unlike += found != our_text
    assert unlike <= 0.005 * len(lines)
