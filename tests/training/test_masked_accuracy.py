"""Accuracy is a mean over real tokens, kept as (sum, count)."""

import keras
import numpy as np

from keras_transformer.training import MaskedAccuracy

V = 5


def logits_for(predictions):
    return np.eye(V, dtype="float32")[np.array(predictions)]


def test_counts_real_tokens_only():
    labels = np.array([[1, 2, 3, 0], [4, 0, 0, 0]])
    predictions = [[1, 2, 4, 0], [4, 0, 3, 0]]  # right, right, wrong; right
    metric = MaskedAccuracy()
    assert float(metric(labels, logits_for(predictions))) == 3 / 4


def test_batches_add_up_by_tokens():
    metric = MaskedAccuracy()
    metric.update_state(np.array([[1, 2, 3]]), logits_for([[1, 2, 3]]))
    metric.update_state(np.array([[1, 0, 0]]), logits_for([[2, 0, 0]]))
    assert float(metric.result()) == 3 / 4


def test_weights_count():
    metric = MaskedAccuracy()
    weights = np.array([[3.0, 1.0]], "float32")
    assert float(metric(np.array([[1, 2]]), logits_for([[1, 1]]), weights)) == 3 / 4


def test_nothing_seen_gives_zero():
    metric = MaskedAccuracy()
    assert float(metric(np.array([[0, 0]]), logits_for([[1, 0]]))) == 0


def test_config_round_trip():
    metric = MaskedAccuracy(pad_id=3, name="right")
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert isinstance(again, MaskedAccuracy)
    assert again.get_config() == metric.get_config()
