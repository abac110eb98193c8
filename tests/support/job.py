"""Trainings by several processes and devices together.

`python -m support.job FOLDER KIND WAY` is one of the processes that `run_job` starts as the
launcher of each engine does. With `DIES=N`, it dies after N batches. The kind is "run", the
training of `tiny_run` in a folder that `prepare` has left, or a user's own model, which the process
leaves in `FOLDER/model.keras`.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import ablation_layers  # noqa: F401  registers batch normalization
import keras
import numpy as np

from keras_transformer import (
    LanguageModel,
    MaskedCrossentropy,
    Perplexity,
    Transformer,
    TransformerAdam,
    fit,
    load_recipe,
    train as train_run,
)
from keras_transformer.training import Distribution
from keras_transformer.training.run.train import open_run, start
from support import tiny_run
from support.fitting_process import Kill

# --- A run ---------------------------------------------------------------------------------------

# With an ε far above rounding, steps are as wrong as gradients are. With 1e-9, Adam's first steps
# are about the learning rate long: also where the gradient is nothing but rounding, and even if the
# gradients of replicas come to twice what they should.
SETTINGS = [
    "training.adam_epsilon=0.01",
    "training.distribution=data_parallel",
    "training.accumulation_steps=1",
    "model.dropout_rate=0.0",
    "training.simcut=0.0",
    "training.validation_bleu_sentences=0",
    "tokenizer.vocabulary_size=16",
]


def prepare(directory: Path, settings: list[str]) -> None:
    """Leave text and recipe in a folder."""
    tiny_run.write_text(directory)
    path = directory / "recipe.yaml"
    path.write_text(tiny_run.recipe_for(directory).to_yaml())
    path.write_text(load_recipe(path, [*SETTINGS, *settings]).to_yaml())


# --- A user's own model --------------------------------------------------------------------------

ROWS, VOCABULARY, STEPS = 7, 12, 20


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


def train(distribution, folder, kind, way, callbacks=()):
    """Trains a model by `fit` of the package or by `model.fit`. Returns the loss of `model.fit`."""
    with distribution.making():
        model = new_model(kind)
    callbacks, loss = [*callbacks, BytesHeld(model)], None
    if way == "fit":
        data = distribution.split(lambda skipped: batches(kind, skipped))
        options = {"checkpoint_every": 5, "progress": False, "callbacks": callbacks}
        options["validation"] = [next(batches(kind))]
        fit(model, data, folder / "run", steps=STEPS, distribution=distribution, **options)
    else:
        accumulation = model.optimizer.gradient_accumulation_steps or 1
        options = {"steps_per_epoch": STEPS * accumulation, "verbose": 0, "callbacks": callbacks}
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


# --- Processes -----------------------------------------------------------------------------------


def run_job(
    folder: Path, kind: str, way: str, processes: int, devices: int = 1, dies: int | None = None
) -> tuple[list[int], list[str]]:
    """Trains in processes, of which the last may die. A run that has begun goes on.

    Returns their exit codes and outputs.
    """
    way = "resume" if kind == "run" and (folder / "run").exists() else way
    words = ["support.job", str(folder), kind, way]
    port, job = free_port(), []
    for rank in range(processes):
        environment = os.environ | environment_of(rank, processes, port, devices)
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        if dies is not None and rank == processes - 1:
            environment["DIES"] = str(dies)
        with (folder / f"log{rank}").open("w") as log:
            command = [sys.executable, "-m", *words]
            job.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(900) for process in job]
    finally:
        for process in job:
            process.kill()
    return codes, [(folder / f"log{rank}").read_text() for rank in range(processes)]


def environment_of(rank: int, processes: int, port: int, devices: int) -> dict[str, str]:
    """What the launcher of the engine sets."""
    count = str(processes)
    return {
        "torch": {
            "RANK": str(rank),
            "WORLD_SIZE": count,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        },
        "jax": {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
            f"--xla_force_host_platform_device_count={devices}",
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"localhost:{port}",
            "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
        },
        "tensorflow": {"JOB_DEVICES": str(devices)}
        | ({"TF_CONFIG": _tf_config(rank, processes, port)} if processes > 1 else {}),
    }[os.environ["KERAS_BACKEND"]]


def _tf_config(rank: int, processes: int, port: int) -> str:
    # Only the first port is known to be free; the others are so as a rule.
    workers = [f"localhost:{port + index}" for index in range(processes)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def split_cpu(devices: int) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, parts)


def main(folder, kind, way):
    if devices := os.environ.get("JOB_DEVICES"):
        split_cpu(int(devices))
    callbacks = [Kill(int(os.environ["DIES"]))] if "DIES" in os.environ else []
    if kind == "run":
        recipe, resume = load_recipe(folder / "recipe.yaml"), way == "resume"
        run = open_run(start(recipe), folder / "run", recipe, resume)
        return train_run(run, resume, callbacks)
    _, sharded, way = way.rpartition("sharded_")
    split = {"fully_sharded": True} if keras.config.backend() == "torch" else {"model_shards": 2}
    distribution = Distribution.all_devices(**(split if sharded else {}))
    print("loss", train(distribution, folder, kind, way, callbacks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
