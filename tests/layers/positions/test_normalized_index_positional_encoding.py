"""The index divided by a fixed maximum length, added or concatenated."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import NormalizedIndexPositionalEncoding

B, T, D, LENGTH = 2, 5, 7, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def test_contract(x, tmp_path):
    arguments = {"max_length": LENGTH, "concatenate": True}
    assert_layer_contract(
        NormalizedIndexPositionalEncoding, arguments, {"embeddings": x}, (B, T, D), tmp_path
    )


def test_index_is_a_fraction_of_the_maximum():
    encoded = to_numpy(NormalizedIndexPositionalEncoding(max_length=8)(np.ones((1, 5, 2))))
    np.testing.assert_allclose(encoded[0, :, 0], [1, 1.125, 1.25, 1.375, 1.5])
    np.testing.assert_array_equal(encoded[..., 1], encoded[..., 0])


def test_fraction_is_appended_and_projected(x):
    layer = NormalizedIndexPositionalEncoding(max_length=LENGTH, concatenate=True)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.encode_positions(
        weights_of(layer), x, "normalized_index_concatenated", LENGTH
    )
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)
