"""A convolution with a gated linear unit."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import ConvolutionalEncoderLayer

B, S, D = 2, 7, 5


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def test_contract(x, padding_mask, tmp_path):
    inputs = {"x": x, "padding_mask": padding_mask}
    arguments = {"d_model": D, "kernel_size": 4, "dropout_rate": 0.0}
    assert_layer_contract(ConvolutionalEncoderLayer, arguments, inputs, (B, S, D), tmp_path)


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_agrees_with_reference(x, padding_mask, kernel_size):
    layer = ConvolutionalEncoderLayer(D, kernel_size)
    layer.build(x.shape)
    randomize(layer)
    x[0, 4:] = 100  # padding
    found = to_numpy(layer(x, padding_mask=padding_mask))
    for row, length in enumerate((4, S)):
        real = x[row, :length]
        expected = reference.convolutional_encoder_layer(weights_of(layer), real, kernel_size)
        np.testing.assert_allclose(found[row, :length], expected, atol=1e-5)


def test_the_initial_weights_keep_the_variance():
    x = np.random.default_rng(0).normal(size=(1, 512, 64)).astype("float32")
    y = x
    for _ in range(4):
        y = ConvolutionalEncoderLayer(64, dropout_rate=0.25)(y, training=True)
    assert 0.3 < np.var(to_numpy(y)) < 3


def test_dropout_acts_in_training_only(x):
    layer = ConvolutionalEncoderLayer(D, dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01
