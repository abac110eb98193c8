"""The feed-forward network; dropout, residual connection and normalization around a sublayer."""

import keras
import numpy as np
import pytest
from ablation_layers import BatchNormalization
from support import reference
from support.cases import once
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import (
    FeedForward,
    GatedFeedForward,
    ResidualConnection,
    RMSNormalization,
)
from keras_transformer.layers.normalization import NORMALIZATIONS, normalization
from keras_transformer.layers.sublayers import FEED_FORWARDS, feed_forward, new_feed_forward
from keras_transformer.models import Transformer
from keras_transformer.recipe.sections import ModelSettings

B, T, D, F = 2, 5, 7, 11
IS_REAL = np.arange(T) < np.array([[3], [T]])


@pytest.fixture
def inputs():
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=(B, T, D)).astype("float32") for name in ("x", "output")}


@pytest.fixture
def x(inputs):
    return 3 + 2 * inputs["x"]


@pytest.mark.once
def test_contract_of_the_gated_network(inputs, tmp_path):
    arguments, x = {"d_model": D, "d_ff": F, "use_bias": False}, {"x": inputs["x"]}
    assert_layer_contract(GatedFeedForward, arguments, x, (B, T, D), tmp_path)


@pytest.mark.parametrize(
    "activation, use_bias",
    [("relu", True), ("gelu", False), ("gelu_approximate", True), ("swiglu", False)]
    + once(("geglu", True)),
)
def test_the_network_agrees_with_reference(x, activation, use_bias):
    layer = new_feed_forward(activation, d_model=D, d_ff=F, use_bias=use_bias)
    layer = randomize(layer, shape=x.shape)
    assert any(weight.name == "bias" for weight in layer.weights) == use_bias
    expected = reference.feed_forward(weights_of(layer), x, activation)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_connection_agrees_with_reference(inputs, norm_first):
    layer = randomize(ResidualConnection(0.5, norm_first), shape=(B, T, D))
    x = inputs["x"]
    expected = reference.residual(weights_of(layer), x, lambda x: x * x, norm_first)
    entered = to_numpy(layer.enter(x))
    np.testing.assert_allclose(to_numpy(layer(x, entered * entered)), expected, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("mixed_bfloat16", 0.05)])
def test_rms_normalization_agrees_with_reference_and_runs_in_float32(x, dtype, tolerance):
    layer = randomize(RMSNormalization(dtype=dtype), shape=x.shape)
    small = x * 1e-2  # Their squares differ from epsilon too little for bfloat16.
    expected = reference.normalization(weights_of(layer), small)
    found = to_numpy(keras.ops.cast(layer(small), "float32"))
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_batch_statistics_are_those_of_real_tokens(inputs):
    layer = ResidualConnection(0.0, normalization="batch")
    x, is_real = inputs["x"], IS_REAL
    x[~is_real] = 1e6
    with_keras_mask = keras.layers.Masking(1e6)(x)
    nothing = np.zeros_like(x)
    by_argument = layer(x, nothing, is_real, training=True)
    for output in (by_argument, layer(with_keras_mask, nothing, training=True)):
        np.testing.assert_allclose(to_numpy(output)[is_real].mean(0), 0, atol=1e-5)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual(inputs):
    layer = ResidualConnection(dropout_rate=0.5, norm_first=True)
    x, output = inputs["x"], inputs["output"]
    passed = to_numpy(layer(x, output, training=True)) - x
    dropped = np.isclose(passed, 0)
    assert 0 < dropped.mean() < 1
    np.testing.assert_allclose(passed[~dropped], 2 * output[~dropped], atol=1e-5)


def test_normalizes_in_float32_under_half_precision():
    # In bfloat16 1000 and 1001 are one number, and the variance of small numbers is lost.
    layer = ResidualConnection(0.0, dtype="mixed_bfloat16")
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32") * 1e-3
    output = to_numpy(layer(x, np.zeros_like(x))).astype("float32")
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(deviation**2 + 1e-6)
    np.testing.assert_allclose(output, expected, atol=0.05)


@pytest.mark.once
def test_contract_of_batch_normalization(x, tmp_path):
    inputs = {"inputs": x, "padding_mask": IS_REAL}
    assert_layer_contract(BatchNormalization, {"epsilon": 1e-3}, inputs, x.shape, tmp_path)


def test_training_uses_the_statistics_of_real_tokens_and_keeps_their_averages(x):
    layer = randomize(BatchNormalization(), shape=x.shape)
    gamma, beta, *before = (to_numpy(weight) for weight in layer.weights)
    x[~IS_REAL] = 1e6
    output = to_numpy(layer(x, padding_mask=IS_REAL, training=True))
    mean, variance = x[IS_REAL].mean(0), x[IS_REAL].var(0)
    expected = gamma * (x[IS_REAL] - mean) / np.sqrt(variance + 1e-6) + beta
    np.testing.assert_allclose(output[IS_REAL], expected, atol=1e-5)
    moved = layer.moving_mean, layer.moving_variance
    for average, old, new in zip(moved, before, (mean, variance), strict=True):
        np.testing.assert_allclose(to_numpy(average), 0.99 * old + 0.01 * new, atol=1e-5)


def test_a_padding_mask_is_for_this_layer_alone():
    """Otherwise, Keras would warn that the output projection loses it."""
    inputs, mask = keras.Input((T, D)), keras.Input((T,), dtype="bool")
    assert not hasattr(BatchNormalization()(inputs, padding_mask=mask), "_keras_mask")
    masked = keras.layers.Masking()(inputs)
    assert BatchNormalization()(masked)._keras_mask is masked._keras_mask


@pytest.mark.once
def test_a_norm_of_ones_own_is_named_in_a_recipe(monkeypatch):
    monkeypatch.setitem(NORMALIZATIONS, "rms_of_a_program", None)  # is deleted after the test

    @normalization("rms_of_a_program")
    class RMS(keras.layers.RMSNormalization):
        pass

    settings = ModelSettings(num_layers=1, d_model=4, num_heads=2, normalization="rms_of_a_program")
    model = Transformer(vocabulary_size=5, norm_first=True, **settings.overrides)
    norms = {type(x) for x in model._flatten_layers() if "norm" in x.name}
    assert norms == {RMS}
    with pytest.raises(
        ValueError, match=r"\['layer', 'rms', 'batch', 'rms_.*normalization='instance'"
    ):
        ResidualConnection(0.0, normalization="instance")


@pytest.mark.once
def test_a_feed_forward_network_of_ones_own_is_named_in_a_recipe(monkeypatch):
    monkeypatch.setitem(FEED_FORWARDS, "squared_relu", None)  # is deleted after the test

    @feed_forward("squared_relu")
    class SquaredRelu(FeedForward):
        def call(self, x):
            return self.outer(self.inner(x) ** 2)

    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 3}
    settings = ModelSettings(**sizes, activation="squared_relu", use_bias=False)
    model = Transformer(vocabulary_size=5, **settings.overrides)
    networks = [x.layers[0].feed_forward for x in (model.encoder, model.decoder)]
    assert [type(x) for x in networks] == [SquaredRelu] * 2
    assert not [x.path for x in model.weights if x.name == "bias"]
    with pytest.raises(ValueError, match=r"'relu', .*'swiglu', .*activation='swoglu'"):
        Transformer(vocabulary_size=5, **sizes, activation="swoglu")
