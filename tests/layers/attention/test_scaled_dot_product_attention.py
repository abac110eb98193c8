"""Equation 1."""

import math

import numpy as np
import pytest
from support import reference
from support.contract import to_numpy

from keras_transformer.layers import scaled_dot_product_attention

B, H, T, S, K, K_V = 2, 3, 5, 7, 11, 13


@pytest.fixture
def tensors():
    generator = np.random.default_rng(0)
    shapes = (B, H, T, K), (B, H, S, K), (B, H, S, K_V)
    return [generator.normal(size=shape).astype("float32") for shape in shapes]


@pytest.fixture
def mask():
    mask = np.random.default_rng(1).random((B, 1, T, S)) < 0.5
    mask[..., 0] = True  # every query has a key
    return mask


@pytest.mark.parametrize("use_scale", [True, False])
def test_agrees_with_reference(tensors, mask, use_scale):
    output, weights = scaled_dot_product_attention(*tensors, mask, use_scale=use_scale)
    expected_output, expected_weights = reference.scaled_dot_product_attention(
        *tensors, mask, use_scale
    )
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


def test_two_keys_by_hand():
    # Scores 0 and 2 * log(3) / sqrt(4): weights 1/4 and 3/4.
    query = np.array([[1.0, 1.0, 0.0, 0.0]], "float32")
    key = np.array([[0.0, 0.0, 5.0, 5.0], [math.log(3), math.log(3), 5.0, 5.0]], "float32")
    value = np.array([[0.0], [8.0]], "float32")
    output, weights = scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(to_numpy(weights), [[0.25, 0.75]], atol=1e-6)
    np.testing.assert_allclose(to_numpy(output), [[6.0]], atol=1e-5)


def test_weights_sum_to_one_and_are_zero_where_masked(tensors, mask):
    weights = to_numpy(scaled_dot_product_attention(*tensors, mask)[1])
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    masked = np.broadcast_to(~mask, weights.shape)
    assert (weights[masked] == 0).all()
    assert (weights[~masked] > 0).all()


def test_fully_masked_row_is_finite(tensors):
    mask = np.ones((B, 1, T, S), bool)
    mask[0, 0, 2] = False
    output, weights = scaled_dot_product_attention(*tensors, mask)
    assert np.isfinite(to_numpy(output)).all()
    np.testing.assert_allclose(to_numpy(weights)[0, :, 2], 1 / S, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fully_masked_row_is_finite_in_half_precision(tensors, dtype):
    import keras

    tensors = [keras.ops.cast(tensor, dtype) for tensor in tensors]
    output, _ = scaled_dot_product_attention(*tensors, np.zeros((B, 1, T, S), bool))
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert np.isfinite(to_numpy(keras.ops.cast(output, "float32"))).all()


def test_scaling_keeps_the_softmax_from_saturating():
    generator = np.random.default_rng(0)
    query, key = (generator.normal(size=(101, 1024)).astype("float32") for _ in range(2))
    highest = {
        use_scale: to_numpy(
            scaled_dot_product_attention(query, key, key, use_scale=use_scale)[1]
        ).max(-1)
        for use_scale in (True, False)
    }
    # Scores of variance 1 spread over 101 keys; scores of variance 1024 choose one.
    assert highest[True].mean() < 0.2
    assert highest[False].mean() > 0.8


def test_dropout_acts_on_what_is_summed_and_not_on_what_is_returned(tensors):
    output, weights = scaled_dot_product_attention(*tensors, dropout=lambda weights: 0 * weights)
    assert (to_numpy(output) == 0).all()
    np.testing.assert_allclose(to_numpy(weights).sum(-1), 1.0, atol=1e-6)


def test_a_bias_is_added_to_the_scaled_scores():
    generator = np.random.default_rng(0)
    query, key, value = (generator.normal(size=(2, 5, 4)).astype("float32") for _ in range(3))
    bias = generator.normal(size=(5, 5)).astype("float32")
    mask = np.tril(np.ones((5, 5), bool))
    output, _ = scaled_dot_product_attention(query, key, value, mask, score_bias=bias)
    expected, _ = reference.scaled_dot_product_attention(query, key, value, mask, bias=bias)
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
