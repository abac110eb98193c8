"""What all exchanges of weights with KerasHub need."""

import sys

import keras
import pytest

from keras_transformer.exchange.exchange import check_weights, checked_backbone


def test_a_weight_that_would_be_lost_is_named():
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    check_weights("model", dense.weights, dense.weights)
    with pytest.raises(ValueError, match="Received: model with the weights .*bias"):
        check_weights("model", dense.weights, [dense.kernel])


def test_a_missing_keras_hub_is_told_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match="pip install 'keras3-transformer"):
        checked_backbone("bert_tiny_en_uncased", "BertBackbone")
