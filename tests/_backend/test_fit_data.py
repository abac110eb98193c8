import subprocess
import sys

import keras
import numpy as np
from support.parallel_text import store_of_lengths

from keras_transformer.data import BatchPlan, evaluation_batches, fit_data

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


def test_evaluate_sees_every_batch_once(tmp_path):
    store = store_of_lengths(tmp_path / "store", LENGTHS)
    batches = evaluation_batches(store, tokens_per_batch=32)
    seen = [np.asarray(labels) for _, labels, _ in fit_data(batches)]
    for labels, (_, expected, _) in zip(seen, batches, strict=True):
        np.testing.assert_array_equal(labels, expected)
    model = small_model()
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


def test_a_script_that_trains_ends_without_an_error_in_its_log(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Error occurred when finalizing" not in done.stderr
