"""Dropout, residual connection, normalization."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import ResidualConnection

B, T, D = 2, 5, 7


@pytest.fixture
def inputs():
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=(B, T, D)).astype("float32") for name in ("x", "output")}


def test_contract(inputs, tmp_path):
    arguments = {"dropout_rate": 0.1}
    assert_layer_contract(ResidualConnection, arguments, inputs, (B, T, D), tmp_path)


@pytest.mark.parametrize("norm_first", [False, True])
def test_agrees_with_reference(inputs, norm_first):
    layer = ResidualConnection(0.5, norm_first)
    layer.build((B, T, D))
    randomize(layer)
    x = inputs["x"]
    expected = reference.residual(weights_of(layer), x, lambda x: x * x, norm_first)
    entered = to_numpy(layer.enter(x))
    np.testing.assert_allclose(to_numpy(layer(x, entered * entered)), expected, atol=1e-5)


def test_batch_statistics_are_those_of_real_tokens(inputs):
    layer = ResidualConnection(0.0, normalization="batch")
    x, is_real = inputs["x"], np.arange(T) < np.array([[3], [T]])
    x[~is_real] = 1e6
    with_keras_mask = keras.layers.Masking(1e6)(x)
    nothing = np.zeros_like(x)
    by_argument = layer(x, nothing, is_real, training=True)
    for output in (by_argument, layer(with_keras_mask, nothing, training=True)):
        np.testing.assert_allclose(to_numpy(output)[is_real].mean(0), 0, atol=1e-5)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual(inputs):
    layer = ResidualConnection(dropout_rate=0.5, norm_first=True)
    x, output = inputs["x"], inputs["output"]
    passed = to_numpy(layer(x, output, training=True)) - x
    dropped = np.isclose(passed, 0)
    assert 0 < dropped.mean() < 1
    np.testing.assert_allclose(passed[~dropped], 2 * output[~dropped], atol=1e-5)


def test_normalizes_in_float32_under_half_precision():
    # In bfloat16 1000 and 1001 are one number, and the variance of small numbers is lost.
    layer = ResidualConnection(0.0, dtype="mixed_bfloat16")
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32") * 1e-3
    output = to_numpy(layer(x, np.zeros_like(x))).astype("float32")
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(deviation**2 + 1e-6)
    np.testing.assert_allclose(output, expected, atol=0.05)
