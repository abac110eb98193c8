"""The index of a position, a fraction of it, and its binary digits, added or concatenated."""

import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of

from keras_transformer.layers import (
    BinaryPositionalEncoding,
    IndexPositionalEncoding,
    NormalizedIndexPositionalEncoding,
)

B, T, D, LENGTH = 2, 5, 7, 11
ENCODINGS = {
    "index": (IndexPositionalEncoding, {}),
    "normalized_index": (NormalizedIndexPositionalEncoding, {"max_length": LENGTH}),
    "binary": (BinaryPositionalEncoding, {"max_length": LENGTH}),
}


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("name", ENCODINGS)
def test_features_are_appended_and_projected(name, x):
    encoding, arguments = ENCODINGS[name]
    layer = encoding(**arguments, concatenate=True)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.encode_positions(weights_of(layer), x, f"{name}_concatenated", LENGTH)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)


def test_index_is_added_to_every_feature(x):
    encoded = to_numpy(IndexPositionalEncoding()(x, offset=3))
    np.testing.assert_allclose(encoded, x + np.array([3, 4, 5, 6, 7])[:, None], atol=1e-6)


def test_normalized_index_is_a_fraction_of_the_maximum():
    encoded = to_numpy(NormalizedIndexPositionalEncoding(max_length=8)(np.ones((1, 5, 2))))
    np.testing.assert_allclose(encoded[0, :, 0], [1, 1.125, 1.25, 1.375, 1.5])
    np.testing.assert_array_equal(encoded[..., 1], encoded[..., 0])


def test_digits_are_added_lowest_first():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 8, 5), "float32")))[0]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(encoded[:7, :3], expected)
    np.testing.assert_array_equal(encoded[7], [1, 1, 1, 0, 0])
