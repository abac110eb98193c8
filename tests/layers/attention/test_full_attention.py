"""Full attention in linear memory, by whichever way the backend takes."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.masked_attention import K, Problem, assert_finite_without_keys

from keras_transformer.layers import Dropout, FullAttention
from keras_transformer.layers.attention import full_attention as module


@pytest.mark.parametrize(
    "is_causal, padding",
    [(True, 3), pytest.param(False, 3, marks=pytest.mark.slow), (True, 0)],
)
def test_heads_and_gradients_are_those_of_all_scores(is_causal, padding):
    problem = Problem(11, 11, is_causal=is_causal, padding=padding, d_v=K)
    problem.assert_solved_by(FullAttention(block_size=4))


def test_sequences_without_tokens_are_finite():
    assert_finite_without_keys(FullAttention(2))


def test_all_distances_are_allowed():
    assert to_numpy(FullAttention().allows(np.arange(-3, 4))).all()


def test_a_fused_kernel_is_taken_where_there_is_one_and_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(module, "fused_attention", lambda *_: "fused")
    inputs = Problem(3, 3).inputs
    dropout = Dropout(0.5)
    assert FullAttention()(*inputs) == "fused"
    assert FullAttention()(*inputs, dropout=dropout) == "fused"
    assert to_numpy(FullAttention()(*inputs, dropout=dropout, training=True)).shape == (2, 3, 3, 7)


def test_blocks_of_nothing_are_refused():
    with pytest.raises(ValueError, match="Received: block_size=0"):
        FullAttention(0)
