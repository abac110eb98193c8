"""Blocks and their neighbours."""

import numpy as np
from support.contract import to_numpy

from keras_transformer.layers.attention.sequence_blocks import (
    join_blocks,
    key_marks,
    neighbour_distances,
    split_blocks,
    with_neighbours,
)

X = np.arange(1, 8).reshape(1, 1, 7, 1)


def test_blocks_are_filled_with_zeros_and_joined_without():
    blocks = split_blocks(X, 3)
    assert to_numpy(blocks)[0, 0, :, :, 0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    np.testing.assert_array_equal(to_numpy(join_blocks(blocks, 7)), X)
    assert to_numpy(split_blocks(X, 7)).shape == (1, 1, 1, 7, 1)


def test_neighbours_stand_before_and_behind():
    blocks = split_blocks(X, 3)
    assert to_numpy(with_neighbours(blocks, False))[0, 0, :, :, 0].tolist() == [
        [0, 0, 0, 1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5, 6, 7, 0, 0],
        [4, 5, 6, 7, 0, 0, 0, 0, 0],
    ]
    causal = to_numpy(with_neighbours(blocks, True))[0, 0, :, :, 0]
    assert causal.tolist() == [[0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 0, 0]]


def test_distances_are_those_of_neighbours():
    expected = [[2, 1, 0, -1, -2, -3], [3, 2, 1, 0, -1, -2]]
    assert to_numpy(neighbour_distances(2, False)).tolist() == expected
    assert to_numpy(neighbour_distances(2, True)).tolist() == [row[:4] for row in expected]


def test_keys_are_real_unless_padding_or_absent():
    mask = np.array([[True, True, False]])
    assert to_numpy(key_marks(np.zeros((1, 1, 3, 2)), mask)).tolist() == [[[[1], [1], [0]]]]
    assert to_numpy(key_marks(np.zeros((1, 1, 3, 2)), None)).sum() == 3
