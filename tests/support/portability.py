"""Keras's own SavedModel of a model file, made and run on TensorFlow in a process of its own.

    KERAS_BACKEND=tensorflow python portability.py MODEL.keras FOLDER ANSWERS.npz

`export` does that for a test.
"""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

import keras_transformer  # noqa: F401  # registers its classes
from support.small_models import inputs_of

TESTS = Path(__file__).parents[1]


def export(path: Path, folder: Path, answers: Path) -> None:
    """Writes the logits of the SavedModel that Keras makes of the model."""
    search_path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, __file__, path, folder, answers],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]


def main(path: str, folder: str, answers: str) -> None:
    import tensorflow as tf

    model = keras.saving.load_model(path, safe_mode=True)
    model.export(folder, format="tf_saved_model", verbose=False)
    saved_model = tf.saved_model.load(folder)
    np.savez(answers, logits=saved_model.serve(inputs_of(model)).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
