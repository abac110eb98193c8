"""Positions as rotations."""

import math

import numpy as np
import pytest
from support import reference
from support.contract import to_numpy

from keras_transformer.layers import RotaryPositionalEncoding

B, H, T, K = 2, 3, 5, 14


@pytest.fixture
def heads():
    return np.random.default_rng(0).normal(size=(B, H, T, K)).astype("float32")


def test_agrees_with_reference(heads):
    turned = to_numpy(RotaryPositionalEncoding().rotate(heads, offset=3))
    np.testing.assert_allclose(turned, reference.rotate(heads, offset=3), atol=1e-5)


def test_first_pair_turns_by_one_radian_a_position():
    turned = to_numpy(RotaryPositionalEncoding().rotate(np.array([[1.0, 0.0]] * 3, "float32")))
    expected = [[math.cos(position), math.sin(position)] for position in range(3)]
    np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_scores_depend_on_the_distance_alone(heads):
    rotary = RotaryPositionalEncoding()
    query, key = heads[:, :, :1], heads[:, :, 1:2]

    def score(query_position, key_position):
        turned_query = to_numpy(rotary.rotate(query, offset=query_position))
        turned_key = to_numpy(rotary.rotate(key, offset=key_position))
        return (turned_query * turned_key).sum(-1)

    np.testing.assert_allclose(score(7, 4), score(3, 0), atol=1e-5)
    assert np.abs(score(7, 5) - score(3, 0)).max() > 0.1


def test_positions_are_not_rounded_in_half_precision():
    heads = np.eye(2, 14, dtype="float32")
    turned = RotaryPositionalEncoding(dtype="mixed_bfloat16").rotate(heads, offset=1000)
    np.testing.assert_allclose(to_numpy(turned), reference.rotate(heads, 1000), atol=1e-3)
