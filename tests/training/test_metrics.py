"""Metrics per token: (sum, count) in float32, whatever the policy."""

import keras
import numpy as np
import pytest

from keras_transformer.training import MaskedAccuracy, Perplexity

V = 5


@pytest.mark.parametrize("metric", [MaskedAccuracy(), Perplexity()])
def test_half_precision_does_not_lose_counts(metric):
    # bfloat16 counts no further than 256.
    labels = np.ones((1, 300), "int32")
    logits = keras.ops.cast(np.zeros((1, 300, 3)), "bfloat16")
    metric.reset_state()
    metric.update_state(labels, logits)
    assert [float(variable) for variable in metric.variables][1] == 300


def logits_for(predictions):
    return np.eye(V, dtype="float32")[np.array(predictions)]


def test_batches_add_up_by_tokens():
    metric = MaskedAccuracy()
    metric.update_state(np.array([[1, 2, 3]]), logits_for([[1, 2, 3]]))
    metric.update_state(np.array([[1, 0, 0]]), logits_for([[2, 0, 0]]))
    assert float(metric.result()) == 3 / 4
    metric.reset_state()
    assert float(metric(np.array([[0, 0]]), logits_for([[1, 0]]))) == 0


@pytest.mark.once
def test_weights_count():
    metric = MaskedAccuracy()
    weights = np.array([[3.0, 1.0]], "float32")
    assert float(metric(np.array([[1, 2]]), logits_for([[1, 1]]), weights)) == 3 / 4


def test_is_the_geometric_mean_over_tokens_of_all_batches():
    # Probability of the label: 1/2 three times, then 1/8; (2 * 2 * 2 * 8)^(1/4) = 64^(1/4).
    half = np.log([[[1 / 4, 1 / 2, 1 / 4]] * 3])
    eighth = np.log([[[3 / 4, 1 / 8, 1 / 8]]])
    metric = Perplexity()
    metric.update_state(np.array([[1, 1, 1]]), half)
    metric.update_state(np.array([[1]]), eighth)
    np.testing.assert_allclose(float(metric.result()), 64**0.25, rtol=1e-6)


@pytest.mark.once
def test_the_crossentropy_is_finite_where_its_exponential_is_not():
    metric = Perplexity()
    metric.update_state(np.array([[1, 1]]), np.array([[[500.0, 0.0], [400.0, 0.0]]], "float32"))
    assert float(metric.result()) == np.inf and float(metric.crossentropy()) == 450


def test_padding_changes_nothing():
    metric, padded = Perplexity(), Perplexity()
    logits = np.random.default_rng(0).normal(size=(1, 3, 5)).astype("float32")
    short = float(metric(np.array([[2, 4]]), logits[:, :2]))
    assert float(padded(np.array([[2, 4, 0]]), logits)) == short
