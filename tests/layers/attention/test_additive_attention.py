"""Bahdanau's attention."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import AdditiveAttention

B, T, S, D_Q, D_K, D_V, UNITS = 2, 5, 7, 11, 13, 3, 17


@pytest.fixture
def inputs():
    generator = np.random.default_rng(0)
    return {
        "query": generator.normal(size=(B, T, D_Q)).astype("float32"),
        "key": generator.normal(size=(B, S, D_K)).astype("float32"),
        "value": generator.normal(size=(B, S, D_V)).astype("float32"),
    }


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


@pytest.fixture
def layer(inputs):
    layer = AdditiveAttention(UNITS)
    layer(**inputs)
    randomize(layer)
    return layer


def test_contract(inputs, padding_mask, tmp_path):
    assert_layer_contract(
        AdditiveAttention,
        {"units": UNITS},
        {**inputs, "padding_mask": padding_mask},
        (B, T, D_V),
        tmp_path,
    )


def test_agrees_with_reference(layer, inputs, padding_mask):
    output, weights = layer(**inputs, padding_mask=padding_mask, return_attention_weights=True)
    expected_output, expected_weights = reference.additive_attention(
        weights_of(layer), **inputs, mask=padding_mask[:, None, :]
    )
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


def test_fully_masked_row_is_finite(layer, inputs):
    output = layer(**inputs, padding_mask=np.zeros((B, S), bool))
    assert np.isfinite(to_numpy(output)).all()


def test_a_mask_that_the_key_carries_hides_padding():
    generator = np.random.default_rng(0)
    query, key = (generator.normal(size=(2, n, 7)).astype("float32") for n in (3, 5))
    key[0, 3:] = 0
    layer, inputs = AdditiveAttention(units=4), [keras.Input((None, 7)), keras.Input((None, 7))]
    model = keras.Model(inputs, layer(inputs[0], keras.layers.Masking()(inputs[1])))
    expected = to_numpy(layer(query, key, padding_mask=np.any(key != 0, axis=-1)))
    np.testing.assert_allclose(to_numpy(model([query, key])), expected, atol=1e-6)
