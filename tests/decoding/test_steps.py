"""What greedy and beam search have in common."""

import numpy as np
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD

from keras_transformer.decoding.steps import (
    Request,
    count_tokens,
    empty_ids,
    next_log_probabilities,
    write_at,
)

B, N, V, L = 2, 3, 7, 5


def test_padding_and_bos_are_impossible_and_the_rest_is_not_renormalized():
    logits = np.random.default_rng(0).normal(size=(B, N, V)).astype("float32")
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected[..., [PAD, BOS]] = -np.inf
    found = to_numpy(next_log_probabilities(logits, PAD, BOS))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_empty_ids_are_bos_and_padding():
    expected = [[[BOS, PAD, PAD]] * N] * B
    np.testing.assert_array_equal(to_numpy(empty_ids((B, N, 3), BOS, PAD)), expected)


def test_writes_tokens_at_a_position():
    ids = np.arange(B * N * L).reshape(B, N, L)
    tokens = np.full((B, N), EOS)
    expected = ids.copy()
    expected[:, :, 1] = EOS
    np.testing.assert_array_equal(to_numpy(write_at(ids, tokens, 1)), expected)


def test_limits_are_the_longest_length_or_less():
    source_ids = np.ones((3, 2), "int32")
    for max_lengths, limit, expected in (
        (None, None, [9, 9, 9]),
        ([4, 9, 20], None, [4, 9, 9]),
        ([4, 9, 20], 6, [4, 6, 6]),
    ):
        found = Request(source_ids, max_lengths).as_tensors(9, limit).max_lengths
        np.testing.assert_array_equal(to_numpy(found), expected)


def test_counts_tokens_that_are_not_padding():
    ids = np.array([[[5, EOS, PAD], [5, 6, EOS]]])
    np.testing.assert_array_equal(to_numpy(count_tokens(ids, PAD)), [[2, 3]])
