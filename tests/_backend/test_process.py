"""TensorFlow stays out of processes with another backend."""

import os
import subprocess
import sys

import keras

SAVE_AND_SEED = """
import sys
import keras
from keras_transformer._backend import without_tensorflow

for _ in range(2):
    with without_tensorflow():
        keras.utils.set_random_seed(1)
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save("model.keras")
print("tensorflow" in sys.modules)
from keras.src.utils.module_utils import tensorflow
print(tensorflow.available)
"""


def test_saving_and_seeding_load_no_tensorflow_and_keras_can_do_so_later(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SAVE_AND_SEED]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout
    is_backend = keras.config.backend() == "tensorflow"
    assert output.split() == [str(is_backend), "True"]
    assert (tmp_path / "model.keras").exists()
