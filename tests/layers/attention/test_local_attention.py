"""Local attention equals attention to all pairs with a mask."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.masked_attention import Problem, assert_finite_without_keys

from keras_transformer.layers import LocalAttention


# Windows below, at and above the size of a block; three blocks, the last not full.
@pytest.mark.parametrize(
    "window, length", [(5, 131), pytest.param(64, 150, marks=pytest.mark.slow), (70, 150)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_local_heads_and_gradients_are_those_of_masked_scores(window, length, is_causal):
    problem = Problem(length, length, lambda q, k: np.abs(q - k) <= window, is_causal, padding=9)
    problem.assert_solved_by(LocalAttention(window))


def test_local_attention_without_tokens_is_finite():
    assert_finite_without_keys(LocalAttention(2))


def test_distances_up_to_the_window_are_allowed():
    assert to_numpy(LocalAttention(2).allows(np.arange(-3, 4), 0)).tolist() == [0, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("window", [0, 2.5])
def test_a_window_that_is_no_positive_integer_is_refused(window):
    with pytest.raises(ValueError, match=f"Received: window={window}"):
        LocalAttention(window)
