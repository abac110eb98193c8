"""What beam search and sampling have in common."""

import numpy as np
import pytest
from support.contract import to_numpy

from keras_transformer.decoding.next_tokens import BLOCK, top_k_tokens

B, N, K = 3, 2, 5
OFFSETS = np.array([[0.0, 0.5], [-np.inf, 1.5], [-20.0, -20.5]], "float32")


@pytest.mark.parametrize(
    "vocabulary_size",
    [7, 2 * K * BLOCK, 2 * K * BLOCK + 1, 11 * BLOCK - 1],
    ids=["small", "whole_blocks", "one_token_over", "one_token_short"],
)
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "offsets_and_excluded"])
def test_finds_the_best_of_all(vocabulary_size, is_plain):
    generator, shape = np.random.default_rng(0), (B, N, vocabulary_size)
    scores = generator.permutation(np.prod(shape)).reshape(shape).astype("float32")
    excluded, offsets = ([], None) if is_plain else ([0, 2, vocabulary_size - 1], OFFSETS)
    scores[:, :, excluded] = 1e6
    values, beams, tokens = map(to_numpy, top_k_tokens(scores, K, offsets, excluded))
    scores[:, :, excluded] = -np.inf
    totals = (scores if is_plain else scores + offsets[:, :, None]).reshape(B, -1)
    columns = np.argsort(-totals, axis=-1)[:, :K]
    np.testing.assert_array_equal(values, np.take_along_axis(totals, columns, -1))
    found, is_possible = beams * vocabulary_size + tokens, values > -np.inf
    np.testing.assert_array_equal(found[is_possible], columns[is_possible])
