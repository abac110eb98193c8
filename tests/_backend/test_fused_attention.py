"""The backend's kernel: where there is one, it gives what equation 1 gives."""

import keras
import pytest
from support.masked_attention import K, Problem

from keras_transformer._backend.fused_attention import fused_attention

ON_PYTORCH = keras.backend.backend() == "torch"


@pytest.mark.parametrize("is_causal, padding", [(True, 0), (False, 3)])
def test_a_kernel_gives_heads_and_gradients_of_all_scores(is_causal, padding):
    """Tests see no accelerator: there is one on PyTorch alone."""
    problem = Problem(11, 11, is_causal=is_causal, padding=padding, d_v=K)
    if ON_PYTORCH:
        problem.assert_solved_by(fused_attention)
    else:
        assert fused_attention(*problem.inputs, **problem.options()) is None


def test_what_would_hold_all_scores_is_left_to_others():
    two_masks = Problem(5, 5, is_causal=True, padding=2, d_v=K)
    assert fused_attention(*two_masks.inputs, **two_masks.options()) is None
    assert fused_attention(*Problem(5, 5).inputs) is None  # Values of another width than keys.
