"""The feed-forward network: eq. 2, the same at every position."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import FeedForward

B, T, D, F = 2, 5, 7, 11


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")


def test_contract(x, tmp_path):
    assert_layer_contract(FeedForward, {"d_model": D, "d_ff": F}, {"x": x}, (B, T, D), tmp_path)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_approximate"])
def test_agrees_with_reference(x, activation):
    layer = FeedForward(D, F, activation)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.feed_forward(weights_of(layer), x, activation)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)
