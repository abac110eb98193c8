"""Dense does what Keras's layer does, in training too."""

import keras
import numpy as np
import pytest
from support.contract import assert_layer_contract, randomize, to_numpy

from keras_transformer.layers.dense import Dense

X = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")


def test_contract(tmp_path):
    assert_layer_contract(Dense, {"units": 4}, {"inputs": X}, (2, 5, 4), tmp_path)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_is_that_of_keras(use_bias, training):
    arguments = {"activation": "relu", "use_bias": use_bias}
    ours, peer = Dense(4, **arguments), keras.layers.Dense(4, **arguments)
    ours.build(X.shape)
    peer.build(X.shape)
    randomize(ours)
    peer.set_weights(ours.get_weights())
    expected = to_numpy(peer(X))
    np.testing.assert_allclose(to_numpy(ours(X, training=training)), expected, atol=1e-6)


def test_quantizes_like_that_of_keras():
    ours, peer = Dense(4), keras.layers.Dense(4)
    for layer in (ours, peer):
        layer.build(X.shape)
    peer.set_weights(ours.get_weights())
    for layer in (ours, peer):
        layer.quantize("int8")
    np.testing.assert_allclose(to_numpy(ours(X)), to_numpy(peer(X)), atol=1e-6)
