"""A run that begins on one backend and resumes on another."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from support import tiny_run
from support.command_line import python

from keras_transformer._backend import BACKENDS
from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.run import Run
from keras_transformer.training import train


def resume(run: Run, directory: Path, backend: str) -> Run:
    """Makes the third and the fourth step of a copy of `run` in a process of its own."""
    copy = shutil.copytree(run.directory, directory)
    settings = ["--set", "training.steps=4", "--set", "training.checkpoint_every=1"]
    words = ["-m", "keras_transformer_cli", "train", copy, "--resume", *settings]
    python(*words, KERAS_BACKEND=backend)
    return Run.open(copy)


def losses(run: Run) -> np.ndarray:
    """The loss of each step and the loss on the validation text after it, from step 2 on."""
    logs = logged_scalars(run.logs_dir)
    curves = [logs[tag] for tag in ("loss", "validation/loss")]
    assert [[*curve] for curve in curves] == [[2, 3, 4]] * 2
    return np.array([[*curve.values()] for curve in curves])


@pytest.mark.each_backend
@pytest.mark.slow
def test_the_loss_goes_on_on_another_backend(tmp_path):
    # With the paper's epsilon, Adam moves weights without gradient as far as rounding errors say.
    training = {"steps": 2, "adam_epsilon": 0.01, "validation_bleu_sentences": 0}
    train(begun := tiny_run.new_run(tmp_path, training=training, model={"dropout_rate": 0.0}))
    own = keras.config.backend()
    runs = {backend: resume(begun, tmp_path / backend, backend) for backend in BACKENDS}
    for backend, found in runs.items():
        np.testing.assert_allclose(losses(found), losses(runs[own]), atol=1e-4)
        entries = found.history()
        assert [(x["step"], x["backend"]) for x in entries] == [(0, own), (2, backend)]
        changes = {"training.steps": [2, 4], "training.checkpoint_every": [2, 1]}
        assert [x["changes"] for x in entries] == [{}, changes]
