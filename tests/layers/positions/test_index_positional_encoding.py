"""The raw index, added or concatenated."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import IndexPositionalEncoding

B, T, D = 2, 5, 7


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def test_contract(x, tmp_path):
    arguments, inputs = {"concatenate": True}, {"embeddings": x / 8}
    assert_layer_contract(IndexPositionalEncoding, arguments, inputs, (B, T, D), tmp_path)


def test_index_is_added_to_every_feature(x):
    encoded = to_numpy(IndexPositionalEncoding()(x, offset=3))
    np.testing.assert_allclose(encoded, x + np.array([3, 4, 5, 6, 7])[:, None], atol=1e-6)


def test_index_is_appended_and_projected(x):
    layer = IndexPositionalEncoding(concatenate=True)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.encode_positions(weights_of(layer), x, "index_concatenated")
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)
