"""Full attention in linear memory, by whichever way the backend takes."""

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.gradients import gradients_of
from support.masked_attention import K, Problem, assert_finite_without_keys

from keras_transformer.layers import Dropout, FullAttention
from keras_transformer.layers.attention import full_attention as module
from keras_transformer.layers.attention.full_attention import blockwise_attention
from keras_transformer.layers.dropout import keep_mask


@pytest.mark.parametrize(
    "is_causal, padding",
    [(True, 3), pytest.param(False, 3, marks=pytest.mark.slow), (True, 0)],
)
def test_heads_and_gradients_are_those_of_all_scores(is_causal, padding):
    problem = Problem(11, 11, is_causal=is_causal, padding=padding, d_v=K)
    problem.assert_solved_by(FullAttention(block_size=4))


def test_sequences_without_tokens_are_finite():
    assert_finite_without_keys(FullAttention(2))


def test_a_fused_kernel_is_taken_where_there_is_one_and_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(module, "attend", lambda *_: "fused")
    inputs = Problem(3, 3).inputs
    dropout = Dropout(0.5)
    assert FullAttention()(*inputs) == "fused"
    assert FullAttention()(*inputs, dropout=dropout) == "fused"
    assert to_numpy(FullAttention()(*inputs, dropout=dropout, training=True)).shape == (2, 3, 3, 7)


# --- Blocks of keys ------------------------------------------------------------------------------


def by_blocks(block_size):
    return lambda *inputs, **masks: blockwise_attention(*inputs, **masks, block_size=block_size)


@pytest.mark.parametrize(
    "num_queries, num_keys, is_causal, padding",
    [(11, 11, True, 3), (7, 13, False, 0)],
    ids=["causal_and_padded", "cross"],
)
@pytest.mark.parametrize("block_size", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_blocks_give_heads_and_gradients_of_all_scores(
    num_queries, num_keys, is_causal, padding, block_size
):
    problem = Problem(num_queries, num_keys, is_causal=is_causal, padding=padding)
    problem.assert_solved_by(by_blocks(block_size))


def test_large_scores_do_not_overflow():
    problem = Problem(5, 9)
    problem.inputs[0] *= 1e3
    query, key, value = problem.inputs
    heads = to_numpy(blockwise_attention(query, key, value, block_size=2))
    best = (query @ np.swapaxes(key, -1, -2)).argmax(-1)
    np.testing.assert_allclose(heads, np.take_along_axis(value, best[..., None], 2), atol=1e-4)


def test_sequences_without_tokens_are_the_mean_of_the_values():
    assert_finite_without_keys(by_blocks(2))
    query, key, value = Problem(3, 5).inputs
    nothing = ops.convert_to_tensor(np.zeros((2, 5), bool))
    heads = to_numpy(blockwise_attention(query, key, value, padding_mask=nothing, block_size=2))
    np.testing.assert_allclose(
        heads, np.broadcast_to(value.mean(2)[:, :, None], heads.shape), atol=1e-6
    )


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    """The masks, drawn a block at a time, are put together and given to equation 1."""
    problem, rate, size = Problem(4, 6), 0.5, 3
    masks = [
        to_numpy(keep_mask(ops.convert_to_tensor([17 + block, 5], "int32"), rate, (2, 3, 4, size)))
        for block in range(2)
    ]
    kept = np.concatenate(masks, axis=-1).astype("float32") / (1 - rate)
    assert 0.3 < (kept > 0).mean() < 0.7

    def total(attend):
        upstream = ops.convert_to_tensor(problem.upstream)
        return lambda *inputs: ops.sum(attend(*inputs) * upstream)

    def whole(query, key, value):
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) / K**0.5
        return ops.matmul(ops.softmax(scores) * ops.convert_to_tensor(kept), value)

    seed = ops.convert_to_tensor([17, 5], "int32")
    options = {"block_size": size, "dropout_rate": rate, "seed": seed}
    found = gradients_of(total(lambda *x: blockwise_attention(*x, **options)), *problem.inputs)
    expected = gradients_of(total(whole), *problem.inputs)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
