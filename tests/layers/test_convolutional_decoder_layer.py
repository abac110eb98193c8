"""A causal convolution with multi-step attention."""

import keras
import numpy as np
import pytest
from support import reference
from support.contract import assert_layer_contract, randomize, to_numpy, weights_of

from keras_transformer.layers import ConvolutionalDecoderLayer

B, T, S, D, E, K = 2, 5, 7, 11, 3, 4
SHAPES = {"x": (B, T, D), "embeddings": (B, T, E), "key": (B, S, E), "value": (B, S, E)}
ARGUMENTS = {"d_model": D, "kernel_size": K, "dropout_rate": 0.0, "d_embedding": E}


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    mask = np.arange(S)[None, :] < np.array([[4], [S]])
    return {**arrays, "memory_padding_mask": mask}


@pytest.fixture
def layer():
    layer = ConvolutionalDecoderLayer(**ARGUMENTS)
    layer.build((B, T, D))
    randomize(layer)
    return layer


def test_contract(inputs, tmp_path):
    assert_layer_contract(ConvolutionalDecoderLayer, ARGUMENTS, inputs, (B, T, D), tmp_path)


def test_agrees_with_reference(layer, inputs):
    """The context of a sentence depends on the number of its real tokens."""
    found = to_numpy(layer(**inputs))
    for row, length in enumerate((4, S)):
        own = {name: inputs[name][row] for name in ("x", "embeddings")}
        memory = {name: inputs[name][row, :length] for name in ("key", "value")}
        weights = weights_of(layer)
        expected = reference.convolutional_decoder_layer(weights, **own, **memory, kernel_size=K)
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_without_a_mask_all_keys_count(layer, inputs):
    del inputs["memory_padding_mask"]
    every = {**inputs, "memory_padding_mask": np.ones((B, S), bool)}
    np.testing.assert_allclose(to_numpy(layer(**inputs)), to_numpy(layer(**every)), atol=1e-6)


def test_all_but_zero_in_a_mask_is_a_token(layer, inputs):
    ids = {**inputs, "memory_padding_mask": 7 * inputs["memory_padding_mask"].astype("int32")}
    np.testing.assert_allclose(to_numpy(layer(**ids)), to_numpy(layer(**inputs)), atol=1e-6)


def test_steps_equal_the_call(layer, inputs):
    whole = to_numpy(layer(**inputs))
    x, embeddings, *memory = map(keras.ops.convert_to_tensor, inputs.values())
    past = keras.ops.zeros((B, 1, K - 1, D))
    for t in range(T):
        found, past, weights = layer.step(x[:, t : t + 1], past, embeddings[:, t : t + 1], *memory)
        np.testing.assert_allclose(to_numpy(found)[:, 0], whole[:, t], atol=1e-5)
    assert weights.shape == (B, 1, S)


def test_symbolic_attention_weights_have_the_shape_of_eager_ones(layer, inputs):
    symbolic = {
        name: keras.KerasTensor(array.shape, str(array.dtype)) for name, array in inputs.items()
    }
    output, weights = layer(**symbolic, return_attention_weights=True)
    assert output.shape == (B, T, D) and weights.shape == (B, T, S)
