"""Keras does not load TensorFlow where another backend computes."""

import os
import subprocess
import sys

import keras

PROGRAM = """
import sys
import keras
from keras_transformer._backend.without_tensorflow import without_tensorflow

with without_tensorflow():
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save("model.keras")
print("tensorflow" in sys.modules)
"""


def test_saving_and_seeding_load_no_tensorflow(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == str(keras.config.backend() == "tensorflow")
    assert (tmp_path / "model.keras").exists()
