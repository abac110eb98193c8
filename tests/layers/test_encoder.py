"""The left half of Figure 1."""

import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import EncoderLayer, RotaryPositionalEncoding

B, S, H, D, F = 2, 7, 3, 12, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def make_layer(**arguments):
    layer = EncoderLayer(D, H, F, **arguments)
    layer.build((B, S, D))
    randomize(layer)
    return layer


def test_contract(x, padding_mask, tmp_path):
    arguments = {"d_model": D, "num_heads": H, "d_ff": F, "dropout_rate": 0.0}
    inputs = {"x": x, "padding_mask": padding_mask}
    assert_layer_contract(EncoderLayer, arguments, inputs, (B, S, D), tmp_path)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_agrees_with_reference(x, padding_mask, norm_first, rotary):
    layer = make_layer(
        activation="gelu" if norm_first else "relu",
        norm_first=norm_first,
        position_encoding=RotaryPositionalEncoding() if rotary else None,
    )
    expected = reference.encoder_layer(
        weights_of(layer), x, padding_mask[:, None, :], H, layer.activation, norm_first, rotary
    )
    np.testing.assert_allclose(to_numpy(layer(x, padding_mask=padding_mask)), expected, atol=1e-5)


def test_padding_changes_nothing(x, padding_mask):
    layer = make_layer()
    whole = to_numpy(layer(x, padding_mask=padding_mask))
    x[~padding_mask] = 100
    changed = to_numpy(layer(x, padding_mask=padding_mask))
    np.testing.assert_allclose(changed[padding_mask], whole[padding_mask], atol=1e-5)


def test_dropout_acts_in_training_only(x):
    layer = make_layer(dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01
