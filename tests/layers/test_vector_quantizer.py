"""Vector quantization: nearest codebook vectors, and what is learned from them."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import assert_layer_contract, to_numpy
from support.gradients import gradients_of

from keras_transformer.layers import VectorQuantizer

B, T, D, K, COMMITMENT = 2, 5, 3, 7, 0.5


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def layer(x):
    layer = VectorQuantizer(K, COMMITMENT)
    layer.build(x.shape)
    layer.codebook.assign(np.random.default_rng(2).normal(size=(K, D)).astype("float32"))
    return layer


def nearest(layer, x):
    """Returns codes and codebook vectors, by the distances of all pairs."""
    codebook = to_numpy(layer.codebook)
    codes = np.square(x[..., None, :] - codebook).sum(axis=-1).argmin(axis=-1)
    return codes, codebook[codes]


def test_contract(x, tmp_path):
    arguments = {"num_codes": K, "commitment": COMMITMENT}
    assert_layer_contract(VectorQuantizer, arguments, {"inputs": x}, (B, T, D), tmp_path)


def test_outputs_are_the_nearest_vectors_of_the_codebook(layer, x):
    codes, vectors = nearest(layer, x)
    assert len(np.unique(codes)) > 2
    np.testing.assert_array_equal(to_numpy(layer.encode(x)), codes)
    np.testing.assert_array_equal(to_numpy(layer.decode(codes)), vectors)
    np.testing.assert_allclose(to_numpy(layer(x)), vectors, atol=1e-6)


def test_half_precision_does_not_change_the_codes(x):
    layer = VectorQuantizer(K, dtype="mixed_bfloat16")
    layer.build(x.shape)
    near = np.float32([[1.0, 0.0, 0.0], [1.001, 0.0, 0.0]])  # equal in bfloat16
    layer.codebook.assign(np.concatenate([near, np.full((K - 2, D), 9, "float32")]))
    np.testing.assert_array_equal(to_numpy(layer.encode(near)), [0, 1])


def test_gradients_pass_to_the_inputs_with_that_of_the_commitment(layer, x):
    upstream = np.random.default_rng(3).normal(size=x.shape).astype("float32")

    def loss(inputs):
        return ops.sum(layer(inputs) * ops.convert_to_tensor(upstream)) + sum(layer.losses)

    _, vectors = nearest(layer, x)
    value, gradient = gradients_of(loss, x)
    distance = np.mean((x - vectors) ** 2)
    np.testing.assert_allclose(
        value, np.sum(upstream * vectors) + (1 + COMMITMENT) * distance, rtol=1e-5
    )
    expected = upstream + COMMITMENT * 2 * (x - vectors) / x.size
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_training_moves_codebook_vectors_towards_their_inputs_only(layer, x):
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    codes, vectors = nearest(layer, x)
    expected = to_numpy(layer.codebook).copy()
    np.add.at(expected, codes, 2 * (x - vectors) / x.size)
    model.train_on_batch(x, np.full(x.shape, 100, "float32"))
    np.testing.assert_allclose(to_numpy(layer.codebook), expected, atol=1e-6)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="Received: num_codes=0"):
        VectorQuantizer(0)
    with pytest.raises(ValueError, match="Received: commitment=-1"):
        VectorQuantizer(3, commitment=-1)


def test_large_inputs_become_vectors_of_the_codebook_too(layer, x):
    expected = to_numpy(layer.decode(layer.encode(1e7 * x)))
    np.testing.assert_array_equal(to_numpy(layer(1e7 * x)), expected)


def test_padding_counts_in_no_loss(layer, x):
    mask = np.arange(T) < np.array([[3], [T]])
    layer(x, mask=mask)
    masked = [float(loss) for loss in layer.losses]
    layer(x, mask=5 * mask.astype("int32"))
    np.testing.assert_allclose(masked, [float(loss) for loss in layer.losses], rtol=1e-6)
    layer(np.concatenate([x[0, :3], x[1]])[None])
    np.testing.assert_allclose(masked, [float(loss) for loss in layer.losses], rtol=1e-6)


def test_a_codebook_in_bfloat16_is_searched_in_float32(layer, x):
    half = VectorQuantizer(K, COMMITMENT, dtype="bfloat16")
    half.build(x.shape)
    half.codebook.assign(layer.codebook)
    layer.codebook.assign(ops.cast(half.codebook, "float32"))
    np.testing.assert_array_equal(to_numpy(half.encode(x)), to_numpy(layer.encode(x)))
    decoded = half.decode(layer.encode(x))
    np.testing.assert_array_equal(to_numpy(decoded), to_numpy(layer.decode(layer.encode(x))))
    assert keras.backend.standardize_dtype(half(x).dtype) == "bfloat16"


def test_a_mask_of_one_column_hides_whole_rows(layer, x):
    mask = np.array([[True], [False]])
    layer(x, mask=mask)
    found = [to_numpy(loss) for loss in layer.losses]
    layer(x, mask=np.repeat(mask, T, axis=1))
    np.testing.assert_allclose(found, [to_numpy(loss) for loss in layer.losses], rtol=1e-6)


def test_a_layer_without_codebook_refuses_codes():
    with pytest.raises(ValueError, match="`build` first"):
        VectorQuantizer(K).decode(np.zeros((1,), "int32"))


def test_codes_may_be_bytes_but_not_floats(layer, x):
    codes = to_numpy(layer.encode(x))
    expected = to_numpy(layer.decode(codes))
    np.testing.assert_array_equal(to_numpy(layer.decode(codes.astype("uint8"))), expected)
    with pytest.raises(ValueError, match="`codes` must be integers"):
        layer.decode(codes + 0.9)
