"""The binary digits of the index, added or concatenated."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import BinaryPositionalEncoding

B, T, D, LENGTH = 2, 5, 7, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


def test_contract(x, tmp_path):
    arguments = {"max_length": T, "concatenate": True}
    inputs = {"embeddings": x}
    assert_layer_contract(BinaryPositionalEncoding, arguments, inputs, (B, T, D), tmp_path)


def test_digits_are_added_lowest_first():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 8, 5), "float32")))[0]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(encoded[:7, :3], expected)
    np.testing.assert_array_equal(encoded[7], [1, 1, 1, 0, 0])


@pytest.mark.parametrize(
    "max_length, num_digits", [(1, 1), (2, 1), (3, 2), (8, 3), (9, 4), (1024, 10)]
)
def test_as_many_digits_as_tell_all_positions_apart(max_length, num_digits):
    assert BinaryPositionalEncoding(max_length).num_features == num_digits


def test_digits_are_appended_and_projected(x):
    layer = BinaryPositionalEncoding(max_length=LENGTH, concatenate=True)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.encode_positions(weights_of(layer), x, "binary_concatenated", LENGTH)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)


def test_more_digits_than_features_are_cut_off():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 7, 2), "float32")))[0]
    np.testing.assert_array_equal(encoded[6], [0, 1])
