"""Metrics per token: (sum, count) in float32, whatever the policy."""

import keras
import numpy as np
import pytest

from keras_transformer.training import MaskedAccuracy, Perplexity


@pytest.mark.parametrize("metric", [MaskedAccuracy(), Perplexity()])
def test_half_precision_does_not_lose_counts(metric):
    # bfloat16 counts no further than 256.
    labels = np.ones((1, 300), "int32")
    logits = keras.ops.cast(np.zeros((1, 300, 3)), "bfloat16")
    metric.reset_state()
    metric.update_state(labels, logits)
    assert [float(variable) for variable in metric.variables][1] == 300


@pytest.mark.parametrize("metric", [MaskedAccuracy(), Perplexity()])
def test_reset_forgets(metric):
    metric.update_state(np.ones((1, 2), "int32"), np.zeros((1, 2, 3), "float32"))
    metric.reset_state()
    assert [float(variable) for variable in metric.variables] == [0, 0]
