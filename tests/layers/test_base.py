"""The base class, and layers that compute what Keras's layers do, in training too."""

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import HALF_PRECISION_TOLERANCE, randomize, to_numpy

from keras_transformer._backend import operations
from keras_transformer.layers import (
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    TokenEmbedding,
)
from keras_transformer.layers.normalization import LayerNormalization

X = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
FAR_FROM_ZERO = 3 + 5 * X


@pytest.mark.parametrize(
    "layer",
    [Encoder(1, 7, 1, 9), EncoderLayer(7, 1, 9), MultiHeadAttention(7, 1), FeedForward(7, 9)],
    ids=["encoder", "encoder_layer", "attention", "feed_forward"],
)
def test_a_layer_follows_a_product_with_a_number(layer):
    """On TensorFlow, Keras 3.15 calls such a product sparse."""
    x = keras.Input((None, 7))
    model = keras.Model(x, layer(x * 2.0))
    np.testing.assert_allclose(to_numpy(model(X)), to_numpy(layer(2.0 * X)), atol=1e-5)


def averaging(layer_class):
    """A subclass whose own `call` returns the sum and the mean of the positions."""

    class Averaging(layer_class):
        def call(self, x, memory=None, scale=1.0):
            y = super().call(x)
            return keras.ops.sum(y, axis=1) * scale, keras.ops.mean(y, axis=1, keepdims=True)

    return Averaging


@pytest.mark.parametrize(
    "layer_class, arguments",
    [
        (EncoderLayer, {"d_model": 6, "num_heads": 2, "d_ff": 8}),
        (DecoderLayer, {"d_model": 6, "num_heads": 2, "d_ff": 8, "use_memory": False}),
        (TokenEmbedding, {"vocabulary_size": 9, "d_model": 6}),
    ],
)
def test_the_symbolic_shape_is_that_of_a_subclass_with_its_own_call(layer_class, arguments):
    is_embedding = layer_class is TokenEmbedding
    shape, dtype = ((5,), "int32") if is_embedding else ((5, 6), "float32")
    inputs = keras.Input(shape, dtype=dtype)
    layer = averaging(layer_class)(**arguments)
    outputs = layer(inputs, scale=2.0)
    assert [x.shape for x in outputs] == [(None, 6), (None, 1, 6)]
    eager = keras.Model(inputs, outputs)(np.ones((2, *shape), dtype))
    assert [tuple(x.shape) for x in eager] == [(2, 6), (2, 1, 6)]
    inherited = type("Named", (layer_class,), {})(**arguments)
    assert inherited(inputs).shape == (None, 5, 6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "mixed_bfloat16"},
        *once({"center": False}, {"axis": [1, 2]}, {"dtype": "mixed_float16"}),
    ],
    ids=str,
)
def test_layer_normalization_is_that_of_keras(options, monkeypatch):
    """Also by the kernel for a GPU of JAX."""
    monkeypatch.setattr(operations, "FUSED_DEVICES", ("cpu",))
    classes = LayerNormalization, keras.layers.LayerNormalization
    ours, peer = (randomize(x(epsilon=1e-6, **options), shape=X.shape) for x in classes)
    expected, found = peer(FAR_FROM_ZERO), ours(FAR_FROM_ZERO)
    assert found.dtype == expected.dtype
    tolerance = HALF_PRECISION_TOLERANCE.get(keras.backend.standardize_dtype(found.dtype), 1e-5)
    expected, found = (to_numpy(keras.ops.cast(y, "float32")) for y in (expected, found))
    np.testing.assert_allclose(found, expected, atol=tolerance)
