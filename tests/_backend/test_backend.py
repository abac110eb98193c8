"""TensorFlow stays out of processes with another backend, and processes end with their work."""

import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from support.parallel_text import store_of_lengths

from keras_transformer.data import BatchPlan, evaluation_batches, fit_data

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


@pytest.mark.once
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_saving_and_seeding_load_no_tensorflow_and_keras_can_do_so_later(backend, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KERAS_BACKEND": backend,
    }
    command = [sys.executable, "-c", SAVE_AND_SEED]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert output.split() == ["False", "True"]
    assert (tmp_path / "model.keras").exists()


FAMILY = """
import os, sys, time
from keras_transformer._backend import child_process

print(os.getpid(), flush=True)
descendants = int(sys.argv[1])
if descendants:
    with child_process([sys.executable, __file__, str(descendants - 1)]) as child:
        child.wait()
time.sleep(100)
"""


def is_running(process) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.once
def test_ctrl_c_ends_the_whole_family(tmp_path):
    (tmp_path / "family.py").write_text(FAMILY)
    words = [sys.executable, tmp_path / "family.py", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    light = os.environ | {"KERAS_BACKEND": "numpy"}
    process = subprocess.Popen(words, text=True, env=light, **pipes)
    children = [int(process.stdout.readline()) for _ in range(3)][1:]
    assert all(map(is_running, children))
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    for _ in range(100):  # The system removes processes whose parent has ended.
        if not any(map(is_running, children)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, children))


# The first three batches of each have one width, the last another.
LENGTHS = [(3, 3)] * 12 + [(11, 19)] * 4


def small_model():
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    embed = keras.layers.Embedding(40, 5)
    memory = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source_ids))
    logits = keras.layers.Dense(40)(embed(target_ids) + memory)
    model = keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def test_fit_takes_batches_of_changing_width(tmp_path):
    store = store_of_lengths(tmp_path / "store", LENGTHS)
    plan = BatchPlan(store, tokens_per_batch=32, shuffle=False)
    widths = [plan.batch(step)[1].shape[1] for step in range(plan.batches_per_pass)]
    assert widths[0] == widths[1] != widths[-1]
    model = small_model()
    history = model.fit(
        fit_data(plan.batches()),
        steps_per_epoch=plan.batches_per_pass,
        epochs=3,
        shuffle=False,
        verbose=0,
    )
    assert history.history["loss"][2] < history.history["loss"][0]
    batches = evaluation_batches(store, tokens_per_batch=32)
    seen = [np.asarray(labels) for _, labels, _ in fit_data(batches)]
    for labels, (_, expected, _) in zip(seen, batches, strict=True):
        np.testing.assert_array_equal(labels, expected)
    model.evaluate(fit_data(batches), steps=len(batches), verbose=0)


SCRIPT = """
import sys
import keras
import numpy as np
from keras_transformer import array_batches, fit
x = np.ones((8, 3), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
fit(model, array_batches(x, x[:, :1], batch_size=4), sys.argv[1], steps=2, checkpoint_every=2)
"""


@pytest.mark.once
def test_a_script_that_trains_ends_without_an_error_in_its_log(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Error occurred when finalizing" not in done.stderr
