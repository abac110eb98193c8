"""Batch normalization: what is a statistic of the batch, and what is not."""

import keras
import numpy as np
import pytest
from support.contract import assert_layer_contract, randomize, to_numpy

from keras_transformer.layers.residual_connection import BatchNormalization

B, T, D = 2, 5, 7
IS_REAL = np.arange(T) < np.array([[3], [T]])


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(3, 2, size=(B, T, D)).astype("float32")


def new_layer():
    layer = BatchNormalization()
    layer.build((B, T, D))
    randomize(layer)
    return layer


def test_contract(x, tmp_path):
    inputs = {"inputs": x, "padding_mask": IS_REAL}
    assert_layer_contract(BatchNormalization, {"epsilon": 1e-3}, inputs, x.shape, tmp_path)


def test_training_uses_the_statistics_of_real_tokens_and_keeps_their_averages(x):
    layer = new_layer()
    gamma, beta, *before = (to_numpy(weight) for weight in layer.weights)
    x[~IS_REAL] = 1e6
    output = to_numpy(layer(x, padding_mask=IS_REAL, training=True))
    mean, variance = x[IS_REAL].mean(0), x[IS_REAL].var(0)
    expected = gamma * (x[IS_REAL] - mean) / np.sqrt(variance + 1e-6) + beta
    np.testing.assert_allclose(output[IS_REAL], expected, atol=1e-5)
    moved = layer.moving_mean, layer.moving_variance
    for average, old, new in zip(moved, before, (mean, variance), strict=True):
        np.testing.assert_allclose(to_numpy(average), 0.99 * old + 0.01 * new, atol=1e-5)


def test_tokens_of_a_step_get_what_they_get_in_a_sequence(x):
    layer = new_layer()
    step = layer(x[:, 2])
    np.testing.assert_allclose(to_numpy(step), to_numpy(layer(x))[:, 2], atol=1e-6)


def test_a_padding_mask_is_for_this_layer_alone():
    """Otherwise, Keras would warn that the output projection loses it."""
    inputs, mask = keras.Input((T, D)), keras.Input((T,), dtype="bool")
    assert not hasattr(BatchNormalization()(inputs, padding_mask=mask), "_keras_mask")
    masked = keras.layers.Masking()(inputs)
    assert BatchNormalization()(masked)._keras_mask is masked._keras_mask
