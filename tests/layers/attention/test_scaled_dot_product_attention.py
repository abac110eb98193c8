"""Equation 1, masks (boolean; True = may attend), records of calls, and the layer with one head."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from support import reference
from support.cases import once
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import (
    LocalAttention,
    MultiHeadAttention,
    SelfAttention,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import recorded_attention

B, H, T, S, D, K, K_V = 2, 3, 5, 7, 17, 11, 13


def test_a_byte_is_never_the_padding_minus_1():
    assert to_numpy(padding_mask(np.array([[255, 0]], "uint8"), -1)).all()


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


@pytest.mark.parametrize("use_scale", [*once(True), False])
def test_agrees_with_reference(tensors, mask, use_scale):
    """A bias is added to the scaled scores."""
    bias = np.random.default_rng(2).normal(size=(T, S)).astype("float32")
    output, weights = scaled_dot_product_attention(
        *tensors, mask, use_scale=use_scale, score_bias=bias
    )
    expected_output, expected_weights = reference.scaled_dot_product_attention(
        *tensors, mask, use_scale, bias=bias
    )
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fully_masked_row_is_finite_in_half_precision(tensors, dtype):
    tensors = [keras.ops.cast(tensor, dtype) for tensor in tensors]
    output, _ = scaled_dot_product_attention(*tensors, np.zeros((B, 1, T, S), bool))
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert np.isfinite(to_numpy(keras.ops.cast(output, "float32"))).all()


def test_dropout_acts_on_what_is_summed_and_not_on_what_is_returned(tensors):
    output, weights = scaled_dot_product_attention(*tensors, dropout=lambda weights: 0 * weights)
    assert (to_numpy(output) == 0).all()
    np.testing.assert_allclose(to_numpy(weights).sum(-1), 1.0, atol=1e-6)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def real_tokens():
    return np.arange(T)[None, :] < np.array([[3], [T]])


@pytest.mark.once
def test_contract(x, real_tokens, tmp_path):
    inputs = {"x": x, "padding_mask": real_tokens}
    assert_layer_contract(SelfAttention, {"d_k": K, "d_v": K_V}, inputs, (B, T, K_V), tmp_path)


@pytest.mark.parametrize(
    ("use_scale", "use_causal_mask"), [(True, True), *once((True, False), (False, True))]
)
def test_layer_agrees_with_reference(x, real_tokens, use_scale, use_causal_mask):
    layer = randomize(SelfAttention(K, K_V, use_scale=use_scale), shape=x.shape)
    mask = real_tokens[:, None, :]
    if use_causal_mask:
        mask = mask & reference.causal_mask(T)
    output, weights = layer(
        x,
        padding_mask=real_tokens,
        use_causal_mask=use_causal_mask,
        return_attention_weights=True,
    )
    own, names = weights_of(layer), ("query", "key", "value")
    heads = (reference.dense(own[f"{name}_projection"], x) for name in names)
    expected_output, expected_weights = reference.scaled_dot_product_attention(
        *heads, mask, use_scale
    )
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


X, MEMORY = keras.ops.ones((B, T, 6)), keras.ops.ones((B, S, 6))


@pytest.mark.parametrize(
    "layer, arguments, kind, shape",
    [
        (MultiHeadAttention(6, 3), {"query": X}, "encoder", (B, 3, T, T)),
        (MultiHeadAttention(6, 3), {"query": X, "key": X}, "encoder", (B, 3, T, T)),
        (MultiHeadAttention(6, 3), {"query": X, "key": MEMORY}, "cross", (B, 3, T, S)),
        (SelfAttention(4), {"x": X, "use_causal_mask": True}, "decoder", (B, T, T)),
    ],
)
def test_a_call_is_recorded_with_its_kind(layer, arguments, kind, shape):
    with recorded_attention() as records:
        layer(**arguments)
    assert [(x.layer, x.kind, tuple(x.weights.shape)) for x in records] == [(layer, kind, shape)]


def test_only_calls_of_this_thread_are_recorded():
    layer = MultiHeadAttention(6, 3, attention_pattern=LocalAttention(2))
    layer(X)
    with recorded_attention() as records, ThreadPoolExecutor(1) as pool:
        pool.submit(layer, X).result()
        assert records == []
        layer(X)
    layer(X)
    assert len(records) == 1
