"""One head of self-attention."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import SelfAttention

B, T, D, K, K_V = 2, 5, 7, 11, 3


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(T)[None, :] < np.array([[3], [T]])


def make_layer(**arguments):
    layer = SelfAttention(K, K_V, **arguments)
    layer.build((B, T, D))
    randomize(layer)
    return layer


def test_contract(x, padding_mask, tmp_path):
    inputs = {"x": x, "padding_mask": padding_mask}
    assert_layer_contract(SelfAttention, {"d_k": K, "d_v": K_V}, inputs, (B, T, K_V), tmp_path)


@pytest.mark.parametrize("use_scale", [True, False])
@pytest.mark.parametrize("use_causal_mask", [True, False])
def test_agrees_with_reference(x, padding_mask, use_scale, use_causal_mask):
    layer = make_layer(use_scale=use_scale)
    mask = padding_mask[:, None, :]
    if use_causal_mask:
        mask = mask & reference.causal_mask(T)
    output, weights = layer(
        x,
        padding_mask=padding_mask,
        use_causal_mask=use_causal_mask,
        return_attention_weights=True,
    )
    expected_output, expected_weights = reference.self_attention(
        weights_of(layer), x, mask, use_scale
    )
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


def test_future_tokens_do_not_affect_past(x):
    layer = make_layer()
    whole = to_numpy(layer(x, use_causal_mask=True))
    x[:, 3:] += 1
    changed = to_numpy(layer(x, use_causal_mask=True))
    np.testing.assert_allclose(changed[:, :3], whole[:, :3], atol=1e-6)
    assert np.abs(changed[:, 3:] - whole[:, 3:]).max() > 0.1


def test_value_is_as_wide_as_the_key_by_default():
    assert SelfAttention(d_k=K).d_v == K


def test_a_mask_that_the_input_carries_hides_padding():
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    x[0, 3:] = 0
    layer, inputs = SelfAttention(d_k=3), keras.Input((None, 7))
    model = keras.Model(inputs, layer(keras.layers.Masking()(inputs)))
    expected = to_numpy(layer(x, padding_mask=np.any(x != 0, axis=-1)))
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=1e-6)
