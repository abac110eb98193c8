"""A user's own model, trained by several processes and devices together.

`python -m support.own_job FOLDER KIND WAY STEPS` is one of the processes that `run_own` starts. It
leaves the model in `FOLDER/model.keras`. With `DIES=N`, it dies after N batches.
"""

import os
import sys
from pathlib import Path

import keras
import numpy as np

from keras_transformer import (
    LanguageModel,
    MaskedCrossentropy,
    Perplexity,
    Transformer,
    TransformerAdam,
    fit,
)
from keras_transformer.training import Distribution
from support.fitting_process import Kill
from support.tiny_job import run_processes, split_cpu

ROWS, VOCABULARY = 7, 12


def batches(kind, index=0):
    """Yields batches of 7 rows, which nothing divides, with sentences of 1 to 8 tokens."""
    while True:
        generator = np.random.default_rng(index)
        lengths = generator.integers(2, 9, (ROWS, 1)) // (1 + np.arange(ROWS) % 2)[:, None]
        ids = generator.integers(2, VOCABULARY, (ROWS, 9)).astype("int32")
        ids *= np.arange(9) <= lengths
        index += 1
        if kind in ("keras", "language_model"):
            yield ids[:, :-1], ids[:, 1:], generator.uniform(1, 2, (ROWS, 8)).astype("float32")
        else:
            yield {"source_ids": ids[:, ::-1], "target_ids": ids[:, :-1]}, ids[:, 1:]


def keras_model():
    """Returns a model of Keras alone, with a mask, a regularizer and a clipped gradient."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 6, mask_zero=True, trainable=False)(inputs)
    outputs = keras.layers.Dense(VOCABULARY, "softmax", kernel_regularizer="l2")(x)
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    options = {"weight_decay": 0.01, "use_ema": True, "gradient_accumulation_steps": 2}
    model.compile(keras.optimizers.SGD(0.5, clipnorm=0.1, **options), loss)
    return model


def new_model(kind):
    keras.utils.set_random_seed(1)
    if kind == "keras":
        return keras_model()
    dtype = "mixed_bfloat16" if kind == "bfloat16" else "float32"
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 12, "dropout_rate": 0.0}
    if kind == "language_model":
        model = LanguageModel(VOCABULARY, **sizes, attention_dropout_rate=0.0, pad_id=0)
    else:
        model = Transformer(VOCABULARY, **sizes, dtype=dtype)
    optimizer = TransformerAdam(
        0.01,
        epsilon=0.01,
        global_clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.9,
        gradient_accumulation_steps=3 if kind in ("accumulation", "language_model") else None,
    )
    model.compile(optimizer, MaskedCrossentropy(0.1), weighted_metrics=[Perplexity()])
    return model


def train(distribution, folder, kind, way, steps, callbacks=()):
    """Trains a model by `fit` of the package or by `model.fit`. Returns the loss of `model.fit`."""
    with distribution.making():
        model = new_model(kind)
    callbacks, loss = [*callbacks, BytesHeld(model)], None
    if way == "fit":
        data = distribution.split(lambda skipped: batches(kind, skipped))
        options = {"checkpoint_every": 5, "progress": False, "callbacks": callbacks}
        options["validation"] = [next(batches(kind))]
        fit(model, data, folder / "run", steps=steps, distribution=distribution, **options)
    else:
        accumulation = model.optimizer.gradient_accumulation_steps or 1
        options = {"steps_per_epoch": steps * accumulation, "verbose": 0, "callbacks": callbacks}
        with distribution.fitting(model):
            loss = model.fit(distribution.split(batches(kind)), **options).history["loss"][0]
    distribution.save(model, folder / "model.keras")
    return loss


class BytesHeld(keras.callbacks.Callback):
    """Prints the share of the bytes of weights and optimizer that this process holds."""

    def __init__(self, model):
        super().__init__()
        self.trained = model

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1 and keras.config.backend() == "torch":
            optimizer = self.trained.optimizer.variables
            values = [x.value for x in (*self.trained.trainable_variables, *optimizer)]
            held = sum(getattr(x, "_local_tensor", x).nbytes for x in values)
            print(f"held {held / sum(x.nbytes for x in values):.3f}")


def run_own(folder, kind, way, steps, processes, devices=1, dies=None):
    """Trains in processes, of which the last may die. Returns their exit codes and outputs."""
    words = ["support.own_job", str(folder), kind, way, str(steps)]
    return run_processes(words, folder, processes, devices, dies)


def main(folder, kind, way, steps):
    if devices := os.environ.get("TINY_JOB_DEVICES"):
        split_cpu(int(devices))
    callbacks = [Kill(int(os.environ["DIES"]))] if "DIES" in os.environ else []
    _, sharded, way = way.rpartition("sharded_")
    split = {"fully_sharded": True} if keras.config.backend() == "torch" else {"model_shards": 2}
    distribution = Distribution.all_devices(**(split if sharded else {}))
    print("loss", train(distribution, folder, kind, way, steps, callbacks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
