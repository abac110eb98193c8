"""Length penalty and coverage, by hand."""

import numpy as np
from support.contract import to_numpy

from keras_transformer.decoding.penalties import (
    LEAST_COVERAGE,
    coverage_score,
    length_divisor,
)


def test_length_divisor_of_wu_is_1_at_one_token():
    found = to_numpy(length_divisor(np.array([1, 7]), length_penalty=0.5))
    np.testing.assert_allclose(found, [1.0, 2.0**0.5], rtol=1e-6)


def test_power_of_1_gives_the_mean_of_a_token():
    lengths = np.array([1, 7, 12])
    found = to_numpy(length_divisor(lengths, length_penalty=1.0, form="power"))
    np.testing.assert_allclose(found, lengths, rtol=1e-6)


def test_no_penalty_divides_by_1():
    for form in ("wu", "power"):
        found = to_numpy(length_divisor(np.array([3, 50]), length_penalty=0.0, form=form))
        np.testing.assert_array_equal(found, [1.0, 1.0])


def test_only_real_tokens_that_got_less_than_1_count():
    coverage = np.array([[[0.5, 2.0, 0.25, 0.0], [1.0, 1.0, 1.0, 0.0]]], "float32")
    padding_mask = np.array([[True, True, True, False]])
    found = to_numpy(coverage_score(coverage, padding_mask))
    np.testing.assert_allclose(found, [[np.log(0.5) + np.log(0.25), 0.0]], rtol=1e-6)


def test_a_token_without_attention_is_finite():
    found = to_numpy(coverage_score(np.zeros((1, 1, 1), "float32"), np.array([[True]])))
    np.testing.assert_allclose(found, [[np.log(LEAST_COVERAGE)]], rtol=1e-6)
