"""A run that begins on one backend and resumes on another."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from support import tiny_run
from support.command_line import python

from keras_transformer.runs.checkpoints import logged_scalars
from keras_transformer.runs.run import Run
from keras_transformer.training import train

BACKENDS = ["tensorflow", "jax", "torch"]
HERE = BACKENDS.index(keras.config.backend())
OTHERS = [BACKENDS[(HERE + 1) % 3], BACKENDS[(HERE + 2) % 3]]


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Run:
    """A run whose first two steps were made on this backend, without dropout."""
    directory = tmp_path_factory.mktemp("begun")
    # With the paper's epsilon, Adam moves weights without gradient as far as rounding errors say.
    training = {"steps": 2, "adam_epsilon": 0.01, "validation_bleu_sentences": 0}
    train(run := tiny_run.new_run(directory, training=training, model={"dropout_rate": 0.0}))
    return run


@pytest.fixture(scope="module")
def expected(begun, tmp_path_factory) -> Run:
    """The run, resumed on the same backend."""
    return resume(begun, tmp_path_factory.mktemp("same"), keras.config.backend())


def resume(run: Run, directory: Path, backend: str) -> Run:
    """Makes the third and the fourth step of a copy of `run` in a process of its own."""
    copy = shutil.copytree(run.directory, directory / "copy")
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
@pytest.mark.parametrize("backend", OTHERS)
def test_the_loss_goes_on_on_another_backend(begun, expected, tmp_path, backend):
    found = resume(begun, tmp_path, backend)
    np.testing.assert_allclose(losses(found), losses(expected), atol=1e-4)
    entries = found.history()
    steps = [(entry["step"], entry["backend"]) for entry in entries]
    assert steps == [(0, keras.config.backend()), (2, backend)]
    changes = {"training.steps": [2, 4], "training.checkpoint_every": [2, 1]}
    assert [entry["changes"] for entry in entries] == [{}, changes]
