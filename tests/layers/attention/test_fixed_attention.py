"""Fixed attention equals attention to all pairs with a mask."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.masked_attention import Problem, assert_finite_without_keys

from keras_transformer.layers import FixedAttention


def in_blocks(size, summaries):
    return lambda q, k: (q // size == k // size) | (k % size >= size - summaries)


# Five blocks, the last not full; blocks that are all summary; and one block that is not full.
@pytest.mark.parametrize(
    "size, summaries, length",
    [(7, 2, 31), (9, 3, 5), pytest.param(1, 1, 5, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fixed_heads_and_gradients_are_those_of_masked_scores(size, summaries, length, is_causal):
    problem = Problem(length, length, in_blocks(size, summaries), is_causal, padding=4)
    problem.assert_solved_by(FixedAttention(size, summaries))


def test_fixed_attention_without_tokens_is_finite():
    assert_finite_without_keys(FixedAttention(2))


def test_the_own_block_and_the_ends_of_blocks_are_allowed():
    allowed = to_numpy(FixedAttention(4, 2).allows(5, np.arange(13)))
    np.testing.assert_array_equal(np.flatnonzero(allowed), [2, 3, 4, 5, 6, 7, 10, 11])


@pytest.mark.parametrize("block_size, last", [(128, 8), (4, 1)])
def test_a_sixteenth_of_a_block_is_its_summary(block_size, last):
    allowed = to_numpy(FixedAttention(block_size).allows(block_size, np.arange(block_size)))
    np.testing.assert_array_equal(np.flatnonzero(allowed), np.arange(block_size)[-last:])


@pytest.mark.parametrize("sizes", [(0,), (4, 0), (4, 5), (2.5,)], ids=str)
def test_sizes_that_are_no_sizes_are_refused(sizes):
    names = ("block_size", "num_summaries")[len(sizes) - 1]
    with pytest.raises(ValueError, match=f"Received: {names}={sizes[-1]}"):
        FixedAttention(*sizes)
