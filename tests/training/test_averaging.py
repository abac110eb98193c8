"""The average of checkpoints is the mean of their weights."""

import keras
import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import TransformerAdam, average_checkpoints
from keras_transformer.training.checkpoint import save_checkpoint


def checkpoint_of(directory, step, *weights):
    """A checkpoint of one dense layer with these weights."""
    width = len(weights)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width, use_bias=False)])
    model.compile("adam", loss="mse")
    model.set_weights([np.array([weights], "float32")])
    return save_checkpoint(directory, model, step, keep=10)


def test_is_the_mean_of_weights_and_has_no_optimizer(tmp_path):
    paths = [
        checkpoint_of(tmp_path, step, *weights)
        for step, weights in enumerate([(1.0, 10.0), (2.0, 20.0), (6.0, 0.0)])
    ]
    average_checkpoints(paths, tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[3.0, 10.0]]])
    assert not model.compiled


def test_sums_without_rounding(tmp_path):
    # In float32, 2^24 + 1 is 2^24: a running sum would lose every 1.
    paths = [checkpoint_of(tmp_path, step, 2.0**24 if step == 0 else 1.0) for step in range(4)]
    average_checkpoints(paths, tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[np.float32((2**24 + 3) / 4)]]])


def test_one_checkpoint_is_its_own_average(tmp_path):
    average_checkpoints([checkpoint_of(tmp_path, 1, 0.1)], tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights(), [[[np.float32(0.1)]]])


def test_averages_of_the_weights_stand_for_them(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(TransformerAdam(use_ema=True, ema_momentum=0.5), loss="mse")
    model.optimizer.build(model.trainable_variables)
    ((_, variable),) = model.optimizer._averaged()
    for step, average in enumerate([1.0, 2.0]):
        variable.assign([[average]])
        save_checkpoint(tmp_path, model, step, keep=2)
    average_checkpoints(sorted(tmp_path.glob("step-*")), tmp_path / "model.keras")
    averaged = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(averaged.get_weights(), [[[1.5]]])
    assert not averaged.compiled


def test_refuses_different_models(tmp_path):
    paths = [checkpoint_of(tmp_path, 1, 1.0), checkpoint_of(tmp_path, 2, 1.0, 2.0)]
    with pytest.raises(UserError, match="step-00000001 and .*step-00000002 .* different models"):
        average_checkpoints(paths, tmp_path / "model.keras")
    assert not (tmp_path / "model.keras").exists()


def test_refuses_nothing_to_average(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        average_checkpoints([], tmp_path / "model.keras")
