"""Perplexity is exp of the mean cross-entropy per real token."""

import keras
import numpy as np

from keras_transformer.training import Perplexity


def test_equal_logits_are_as_perplexing_as_the_vocabulary_is_large():
    labels = np.array([[1, 2, 6, 0]])
    np.testing.assert_allclose(float(Perplexity()(labels, np.zeros((1, 4, 7)))), 7, rtol=1e-6)


def test_is_the_geometric_mean_over_tokens_of_all_batches():
    # Probability of the label: 1/2 three times, then 1/8; (2 * 2 * 2 * 8)^(1/4) = 64^(1/4).
    half = np.log([[[1 / 4, 1 / 2, 1 / 4]] * 3])
    eighth = np.log([[[3 / 4, 1 / 8, 1 / 8]]])
    metric = Perplexity()
    metric.update_state(np.array([[1, 1, 1]]), half)
    metric.update_state(np.array([[1]]), eighth)
    np.testing.assert_allclose(float(metric.result()), 64**0.25, rtol=1e-6)


def test_padding_changes_nothing():
    metric, padded = Perplexity(), Perplexity()
    logits = np.random.default_rng(0).normal(size=(1, 3, 5)).astype("float32")
    short = float(metric(np.array([[2, 4]]), logits[:, :2]))
    assert float(padded(np.array([[2, 4, 0]]), logits)) == short


def test_config_round_trip():
    metric = Perplexity(pad_id=3, name="confusion")
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert isinstance(again, Perplexity)
    assert again.get_config() == metric.get_config()
