"""Strided attention equals attention to all pairs with a mask."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.masked_attention import Problem, assert_finite_without_keys

from keras_transformer.layers import StridedAttention


def in_stride(stride):
    return lambda q, k: (np.abs(q - k) <= stride) | ((q - k) % stride == 0)


@pytest.mark.parametrize("stride, length", [(7, 31), pytest.param(1, 5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_strided_heads_and_gradients_are_those_of_masked_scores(stride, length, is_causal):
    problem = Problem(length, length, in_stride(stride), is_causal, padding=4)
    problem.assert_solved_by(StridedAttention(stride))


def test_strided_attention_without_tokens_is_finite():
    assert_finite_without_keys(StridedAttention(2))


def test_neighbours_and_multiples_are_allowed():
    allowed = to_numpy(StridedAttention(3).allows(np.arange(-8, 9), 0))
    expected = [-6, -3, -2, -1, 0, 1, 2, 3, 6]
    np.testing.assert_array_equal(np.arange(-8, 9)[allowed], expected)


def test_a_stride_of_zero_is_refused():
    with pytest.raises(ValueError, match="Received: stride=0"):
        StridedAttention(0)
