"""A user's own model, trained by several processes and devices together.

`python -m support.own_job FOLDER KIND WAY STEPS` is one of the processes; without a launcher, it
trains on one device. It leaves the weights in `FOLDER/weights.npz`.
"""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

from keras_transformer import MaskedCrossentropy, Perplexity, Transformer, TransformerAdam, fit
from keras_transformer.training import Distribution
from support.tiny_job import split_cpu

ROWS, STEPS = 7, 20


def batches(kind, first=0):
    """Yields batches of 7 rows, which nothing divides, with sentences of 2 to 8 tokens."""
    while True:
        generator = np.random.default_rng(first)
        lengths = generator.integers(2, 9, (ROWS, 1)) // (1 + np.arange(ROWS) % 2)[:, None]
        ids = generator.integers(2, 11, (ROWS, 9)).astype("int32")
        ids *= np.arange(9) <= lengths
        first += 1
        if kind == "keras":  # a Keras mask, and the weights of rows
            yield ids[:, :-1], ids[:, 1:], generator.uniform(1, 2, (ROWS, 1)).astype("float32")
        else:
            yield {"source_ids": ids[:, ::-1], "target_ids": ids[:, :-1]}, ids[:, 1:]


def new_model(kind):
    keras.utils.set_random_seed(1)
    dtype = "mixed_bfloat16" if kind == "bfloat16" else "float32"
    if kind == "keras":
        inputs = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(11, 6, mask_zero=True)(inputs)
        x = keras.layers.Dense(11, "softmax", kernel_regularizer="l2")(x)
        model = keras.Model(inputs, x)
        loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
        model.compile(keras.optimizers.SGD(0.5, clipnorm=0.1), loss)
        return model
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 12, "dropout_rate": 0.0}
    model = Transformer(11, **sizes, dtype=dtype)
    accumulation = 2 if kind == "accumulation" else None
    optimizer = TransformerAdam(
        0.01,
        epsilon=0.01,
        global_clipnorm=0.5,
        use_ema=kind != "plain",
        ema_momentum=0.9,
        gradient_accumulation_steps=accumulation,
    )
    model.compile(optimizer, MaskedCrossentropy(0.1), weighted_metrics=[Perplexity()])
    return model


def die_at(step):
    def die(batch, logs=None):
        if batch == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return keras.callbacks.LambdaCallback(on_train_batch_begin=die)


def main(folder, kind, way, steps):
    alone = way.startswith("alone")
    if devices := os.environ.get("TINY_JOB_DEVICES"):
        split_cpu(int(devices))
    distribution = Distribution() if alone else Distribution.all_devices()
    with distribution.making():
        model = new_model(kind)
    last = distribution.rank > 0 or alone
    callbacks = [die_at(int(os.environ["DIES"]))] if "DIES" in os.environ and last else []
    if way == "refused":
        model.fit(next(batches(kind))[0])
    elif way.endswith("fit"):
        options = {"progress": False, "callbacks": callbacks, "checkpoint_every": 5}
        data = distribution.split(lambda skipped: batches(kind, skipped))
        fit(model, data, folder / "run", steps=steps, distribution=distribution, **options)
    else:
        data = distribution.split(batches(kind))
        with distribution.fitting(model):
            history = model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
        if distribution.is_chief:
            print({name: float(x[-1]) for name, x in history.history.items()})
    distribution.save(model, folder / "model.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
