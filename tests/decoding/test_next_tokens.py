"""What beam search and sampling have in common."""

import numpy as np
import pytest
from support.contract import assert_same_arrays, to_numpy

from keras_transformer.decoding.next_tokens import BLOCK, top_k_tokens

B, N, K = 3, 2, 5


@pytest.mark.parametrize(
    "vocabulary_size",
    [7, 2 * K * BLOCK, 2 * K * BLOCK + 1, 11 * BLOCK - 1],
    ids=["small", "whole_blocks", "one_token_over", "one_token_short"],
)
def test_finds_the_best_of_all(vocabulary_size):
    generator = np.random.default_rng(0)
    count = B * N * vocabulary_size
    scores = generator.permutation(count).reshape(B, N, vocabulary_size).astype("float32")
    values, beams, tokens = map(to_numpy, top_k_tokens(scores, K))
    columns = np.argsort(-scores.reshape(B, -1), axis=-1)[:, :K]
    np.testing.assert_array_equal(values, np.take_along_axis(scores.reshape(B, -1), columns, -1))
    np.testing.assert_array_equal(beams, columns // vocabulary_size)
    np.testing.assert_array_equal(tokens, columns % vocabulary_size)


@pytest.mark.parametrize("vocabulary_size", [7, 2 * K * BLOCK + 1], ids=["small", "large"])
def test_offsets_are_added_and_excluded_tokens_are_those_of_minus_infinity(vocabulary_size):
    scores = np.random.default_rng(1).normal(size=(B, N, vocabulary_size)).astype("float32")
    offsets = np.array([[0.0, 0.5], [-np.inf, 1.0], [-20.0, -20.5]], "float32")
    excluded = [0, 2, vocabulary_size - 1]
    scores[:, :, excluded] = 9.0
    expected = scores + offsets[:, :, None]
    expected[:, :, excluded] = -np.inf
    found = top_k_tokens(scores, K, offsets, excluded)
    assert_same_arrays(found, top_k_tokens(expected, K))
