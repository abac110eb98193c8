"""Multi-head attention: self, cross, masked."""

import numpy as np
import pytest
from support import reference
from support.cases import most_once, once
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import (
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
)

B, T, S, D, H, K, K_V = 2, 5, 7, 15, 3, 4, 11


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def memory():
    return np.random.default_rng(1).normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def padding_mask():
    return np.arange(S)[None, :] < np.array([[4], [S]])


def make_layer(**arguments):
    return randomize(MultiHeadAttention(D, H, **arguments), shape=(B, T, D))


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments",
    [
        {"d_k": K, "d_v": K_V, "use_bias": False, "use_scale": False},
        {"num_kv_heads": 1, "qk_norm": True, "attention_soft_cap": 2.0, "norm_epsilon": 1e-5},
    ],
    ids=["all_switches", "gemma"],
)
def test_contract(x, arguments, tmp_path):
    arguments = {"d_model": D, "num_heads": H, **arguments}
    assert_layer_contract(MultiHeadAttention, arguments, {"query": x}, (B, T, D), tmp_path)


@pytest.mark.parametrize("use_scale", [*once(True), False])
def test_cross_attention_agrees_with_reference(x, memory, padding_mask, use_scale):
    layer = make_layer(d_k=K, d_v=K_V, use_scale=use_scale)
    value = memory[..., ::-1].copy()
    output, weights = layer(
        query=x, key=memory, value=value, padding_mask=padding_mask, return_attention_weights=True
    )
    expected_output, expected_weights = reference.multi_head_attention(
        weights_of(layer), x, memory, value, H, padding_mask[:, None, :], use_scale
    )
    assert weights.shape == (B, H, T, S)
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        *once({"num_kv_heads": 1, "attention_pattern": FullAttention(2)}),
        *once({"num_kv_heads": 2, "attention_pattern": LocalAttention(9)}),
        *once({"attention_soft_cap": 0.7, "attention_pattern": FullAttention()}),
        {"num_kv_heads": 2, "qk_norm": True, "attention_soft_cap": 0.7},
    ],
)
def test_grouped_heads_norms_and_soft_caps_agree_with_reference(x, options):
    layer = randomize(MultiHeadAttention(D, 6, d_k=K, d_v=K_V, **options), shape=(B, T, D))
    weights, mask = weights_of(layer), reference.causal_mask(T)
    cap = options.get("attention_soft_cap")
    expected, _ = reference.multi_head_attention(weights, x, x, x, 6, mask, soft_cap=cap)
    np.testing.assert_allclose(to_numpy(layer(x, use_causal_mask=True)), expected, atol=1e-5)
    plain, _ = reference.multi_head_attention(weights, x, x, x, 6, mask)
    assert cap is None or np.abs(plain - expected).max() > 1e-3


def test_dropout_acts_on_the_weights_in_training_only(x):
    layer = make_layer(dropout_rate=0.5)
    inference = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), inference)
    assert np.abs(to_numpy(layer(x, training=True)) - inference).max() > 0.01


@pytest.mark.once
def test_kernels_are_two_dimensional_and_named_as_in_the_paper():
    layer = MultiHeadAttention(D, H, d_k=K, d_v=K_V)
    layer.build((None, None, D))
    shapes = {weight.path.split("/", 1)[1]: weight.shape for weight in layer.weights}
    assert shapes == {
        "query/kernel": (D, H * K),
        "query/bias": (H * K,),
        "key/kernel": (D, H * K),
        "key/bias": (H * K,),
        "value/kernel": (D, H * K_V),
        "value/bias": (H * K_V,),
        "output/kernel": (H * K_V, D),
        "output/bias": (D,),
    }


@pytest.mark.once
def test_the_width_is_that_of_the_query_unless_given(x):
    layer = MultiHeadAttention(num_heads=H)
    key = np.ones((B, S, 17), "float32")
    assert layer(query=x, key=key).shape == (B, T, D)
    assert layer.key_projection.kernel.shape == (17, D)
    assert (layer.d_model, layer.d_k, layer.d_v) == (D, D // H, D // H)


def broadcast_masks():
    mask = np.random.default_rng(3).random((B, H, T, S)) < 0.6
    mask[..., 0] = True
    return {
        "(B, H, T, S)": mask,
        "(1, H, T, S)": mask[:1],
        "(B, T, S)": mask[:, 0],
        "(B, 1, S)": mask[:, 0, :1],
        "(T, S)": mask[0, 0],
        "(S,)": mask[0, 0, 0],
    }


@pytest.mark.parametrize("name", most_once(broadcast_masks(), "(B, T, S)", "(S,)"))
def test_attention_masks_of_any_shape_are_aligned(x, memory, padding_mask, name):
    mask = broadcast_masks()[name]
    weights = make_layer()(
        x,
        key=memory,
        attention_mask=mask,
        padding_mask=padding_mask,
        return_attention_weights=True,
    )[1]
    aligned = mask[:, None] if mask.ndim == 3 else mask
    expected = np.broadcast_to(aligned & padding_mask[:, None, None], (B, H, T, S))
    np.testing.assert_array_equal(to_numpy(weights) > 0, expected)


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments, masks, message",
    [
        ({"num_heads": 4}, {}, "Received: num_heads=4, d_model=15"),
        ({"num_heads": 4, "d_model": None}, {}, "Received: num_heads=4, d_model=15"),
        ({"num_kv_heads": 2}, {}, "num_heads=3, d_model=15, num_kv_heads=2"),
        ({}, {"attention_mask": np.zeros((T, T), "float32")}, "be bool.*Received: .*float32"),
        *(
            (
                {"attention_pattern": pattern},
                {"padding_mask": np.ones((B, length), bool)},
                rf"as many columns as.*shape=\({B}, {length}\)",
            )
            for pattern in (None, FullAttention(), LocalAttention(9))
            for length in (1, T + 1)
        ),
    ],
)
def test_refusals(x, arguments, masks, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"d_model": D, "num_heads": H, **arguments})(x, **masks)
