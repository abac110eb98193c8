"""Local and strided attention equal attention to all pairs with a mask."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.masked_attention import Problem, assert_finite_without_keys

from keras_transformer.layers import LocalAttention, StridedAttention
from keras_transformer.layers.attention.sparse_attention import (
    join_blocks,
    key_marks,
    neighbour_distances,
    split_blocks,
    with_neighbours,
)

X = np.arange(1, 8).reshape(1, 1, 7, 1)


# Windows below, at and above the size of a block; three blocks, the last not full.
@pytest.mark.parametrize(
    "window, length", [(5, 131), pytest.param(64, 150, marks=pytest.mark.slow), (70, 150)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_local_heads_and_gradients_are_those_of_masked_scores(window, length, is_causal):
    problem = Problem(length, length, lambda d: np.abs(d) <= window, is_causal, padding=9)
    problem.assert_solved_by(LocalAttention(window))


def test_local_attention_without_tokens_is_finite():
    assert_finite_without_keys(LocalAttention(2))


def test_distances_up_to_the_window_are_allowed():
    assert to_numpy(LocalAttention(2).allows(np.arange(-3, 4))).tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_a_window_of_zero_is_refused():
    with pytest.raises(ValueError, match="Received: window=0"):
        LocalAttention(0)


def in_stride(stride):
    return lambda d: (np.abs(d) <= stride) | (d % stride == 0)


@pytest.mark.parametrize("stride, length", [(7, 31), pytest.param(1, 5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_strided_heads_and_gradients_are_those_of_masked_scores(stride, length, is_causal):
    problem = Problem(length, length, in_stride(stride), is_causal, padding=4)
    problem.assert_solved_by(StridedAttention(stride))


def test_strided_attention_without_tokens_is_finite():
    assert_finite_without_keys(StridedAttention(2))


def test_neighbours_and_multiples_are_allowed():
    allowed = to_numpy(StridedAttention(3).allows(np.arange(-8, 9)))
    expected = [-6, -3, -2, -1, 0, 1, 2, 3, 6]
    np.testing.assert_array_equal(np.arange(-8, 9)[allowed], expected)


def test_a_stride_of_zero_is_refused():
    with pytest.raises(ValueError, match="Received: stride=0"):
        StridedAttention(0)


def test_blocks_are_padded_with_zeros_and_joined_without():
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
