"""A user's own script: a small model, arrays, and the loop; killed at a step if one is given.

`python fitting_process.py FOLDER [STEP]`
"""

import os
import signal
import sys

import keras
import numpy as np

from keras_transformer import array_batches, fit

x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")


class Kill(keras.callbacks.Callback):
    """Dies as by `kill -9` when the model has made so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_begin(self, batch, logs=None):
        if not self.batches:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches -= 1


def train(folder, callbacks=()):
    """The script of ten lines."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(5, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.AdamW(0.01), "mse", metrics=["mae"])
    batches = array_batches(x, x.sum(axis=1, keepdims=True), batch_size=8, seed=1)
    fit(model, batches, folder, steps=11, checkpoint_every=3, callbacks=callbacks)
    return model


if __name__ == "__main__":
    train(sys.argv[1], [Kill(int(step)) for step in sys.argv[2:]])
