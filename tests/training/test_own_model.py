"""A user's own model trains on several devices as on one."""

import keras
import numpy as np
import pytest
from support import job
from support.contract import assert_same_arrays
from support.small_models import new_model

from keras_transformer.errors import UserError
from keras_transformer.training import Distribution, MaskedCrossentropy
from keras_transformer.training.devices.replica import ReplicaLoss, as_replica

# Processes, and devices in each.
MANY = {"tensorflow": (1, 2), "jax": (1, 2), "torch": (2, 1)}
TWO = dict.fromkeys(MANY, (2, 1))


def check_same_training(folder, kind, way, places, atol=1e-5):
    """Checks many processes or devices against one. Returns the outputs of the processes."""
    many, one = folder / "many", folder / "one"
    many.mkdir()
    one.mkdir()
    codes, logs = job.run_job(many, kind, way, *places[keras.config.backend()])
    assert set(codes) == {0}, logs
    loss = job.train(Distribution(), one, kind, way.removeprefix("sharded_"))
    if loss is not None:
        found = [float(x.rpartition("loss ")[2]) for x in logs]
        np.testing.assert_allclose(found, loss, rtol=1e-5 + atol)
    models = [keras.saving.load_model(x / "model.keras") for x in (many, one)]
    assert_same_arrays(*(model.get_weights() for model in models), atol=atol)
    return logs


@pytest.mark.each_backend
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, way, places, atol",
    [
        pytest.param("keras", "plain", MANY, 1e-5, id="a_model_of_keras"),
        pytest.param("language_model", "plain", MANY, 1e-5, id="a_language_model"),
        pytest.param("accumulation", "plain", MANY, 1e-5, id="a_model_of_the_package"),
        pytest.param("ema", "fit", TWO, 1e-5, id="fit_of_the_package"),
        pytest.param("ema", "plain", TWO, 1e-5, id="plain_fit_in_two_processes"),
        # Each device rounds its part of a gradient to bfloat16, as each micro-batch of one device
        # does. Measured: 1e-3 to 2e-3, micro-batches 2e-3 to 3e-3, bfloat16 against float32 4e-3
        # to 6e-3.
        pytest.param("bfloat16", "fit", MANY, 5e-3, id="bfloat16_but_for_rounding"),
    ],
)
def test_many_equal_one(kind, way, places, atol, tmp_path):
    check_same_training(tmp_path, kind, way, places, atol)


@pytest.mark.each_backend
@pytest.mark.slow
@pytest.mark.parametrize("kind, way", [("ema", "plain"), ("accumulation", "fit")])
def test_processes_that_hold_half_of_the_weights_equal_one(kind, way, tmp_path):
    if keras.config.backend() == "tensorflow":
        return  # It splits no weights.
    logs = check_same_training(tmp_path, kind, f"sharded_{way}", TWO)
    if keras.config.backend() == "torch":
        held = [float(log.partition("held ")[2].split()[0]) for log in logs]
        assert sum(held) == pytest.approx(1, abs=0.01)
        assert max(held) < 0.55


@pytest.mark.each_backend
@pytest.mark.slow
def test_if_a_process_dies_the_others_say_so_and_a_job_of_another_size_resumes(tmp_path):
    codes, logs = job.run_job(tmp_path, "ema", "fit", 2, dies=7)
    assert codes[0] not in (0, None)
    assert codes[1] == -9
    assert (tmp_path / "run" / "checkpoints" / "step-00000005").is_dir()
    assert "UserError: another process of this training has ended" in logs[0]
    codes, logs = job.run_job(tmp_path, "ema", "fit", 1)
    assert codes == [0], logs
    assert (tmp_path / "run" / "checkpoints" / f"step-{job.STEPS:08d}").is_dir()


def test_a_launched_model_of_the_package_is_not_trained_alone(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = new_model()
    model.compile("adam", MaskedCrossentropy())
    ids = np.ones((2, 3), "int32")
    with pytest.raises(RuntimeError, match="as many different models.*WORLD_SIZE=2"):
        model.fit({"source_ids": ids, "target_ids": ids}, ids + 1)


@pytest.mark.parametrize("options", [{"model_shards": 2}, {"fully_sharded": True}])
def test_what_an_engine_cannot_split_is_refused(options, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "tensorflow")
    with pytest.raises(UserError, match="Received: backend=tensorflow"):
        Distribution.all_devices(**options)


@pytest.mark.parametrize(
    "layer, message",
    [
        (keras.layers.BatchNormalization(), "with BatchNormalization: use .*=jax"),
        (keras.layers.Dense(2, dtype="mixed_float16"), "with mixed_float16: use .*=jax"),
    ],
)
def test_what_replicas_would_train_to_other_weights_is_refused(layer, message):
    model = keras.Sequential([keras.Input((2,)), layer])
    model.dtype_policy = layer.dtype_policy  # Keras reads it to scale the loss in float16.
    model.compile("sgd", "mse")
    with pytest.raises(UserError, match=message), as_replica(model, Half(0), list, {}):
        pass


class Half(Distribution):
    """Each of two replicas, one after the other."""

    def __init__(self, rank):
        self.rank, self.shard = rank, (rank, rank + 1, 2)
        self.counts = []

    def total(self, number):
        self.counts.append(number)
        return number * 0 + self.whole


def test_rows_of_an_undivided_batch_by_hand():
    x, y = np.arange(3), np.arange(6).reshape(3, 2)
    parts = [next(Half(rank).split(lambda skipped: [(x, y)])(0)) for rank in (0, 1)]
    np.testing.assert_array_equal([part[0] for part in parts], [[0, 1], [2, 0]])
    np.testing.assert_array_equal(parts[1][1], [[4, 5], [0, 1]])
    # Four rows count as three, so a mean over four is a mean over three.
    np.testing.assert_allclose([part[2][:, 0] for part in parts], [[4 / 3, 4 / 3], [4 / 3, 0]])


@pytest.mark.each_backend
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_losses_of_replicas_add_up_to_the_loss(reduction):
    generator = np.random.default_rng(0)
    y, y_pred = generator.normal(size=(2, 4, 3, 5)).astype("float32")
    weights = np.array([[2, 1, 0], [1, 0, 0], [1, 1, 1], [0, 3, 0]], "float32")
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    replicas = [Half(0), Half(1)]
    for replica in replicas:
        replica.whole = weights.sum() if reduction == "mean_with_sample_weight" else 12
    parts = [
        ReplicaLoss(loss, replica)(y[rows], y_pred[rows], weights[rows])
        for replica, rows in zip(replicas, (slice(0, 2), slice(2, 4)), strict=True)
    ]
    expected = float(loss(y, y_pred, weights.copy()))
    assert sum(map(float, parts)) == pytest.approx(expected, rel=1e-5)
