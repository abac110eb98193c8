"""Sines and cosines of §3.5, trained vectors, indices and binary digits."""

import math

import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of

from keras_transformer import compile_function
from keras_transformer.layers import (
    BinaryPositionalEncoding,
    IndexPositionalEncoding,
    LearnedPositionalEncoding,
    NormalizedIndexPositionalEncoding,
    SinusoidalPositionalEncoding,
)

B, T, D, LENGTH = 2, 5, 7, 11
TABLES = {
    "interleaved": reference.sinusoids,
    "half_split": reference.half_split_sinusoids,
}
INDICES = {
    "index": (IndexPositionalEncoding, {}),
    "normalized_index": (NormalizedIndexPositionalEncoding, {"max_length": LENGTH}),
    "binary": (BinaryPositionalEncoding, {"max_length": LENGTH}),
}


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("d_model", [D, 6])
@pytest.mark.parametrize("layout", TABLES)
def test_agrees_with_reference(layout, d_model):
    x = np.random.default_rng(0).normal(size=(B, T, d_model)).astype("float32")
    encoded = to_numpy(SinusoidalPositionalEncoding(layout)(x))
    np.testing.assert_allclose(encoded, x + TABLES[layout](T, d_model), atol=1e-5)


@pytest.mark.parametrize("first_position", [0, 1, 2])
def test_timescales_of_tensor2tensor_end_at_10000(first_position):
    layer = SinusoidalPositionalEncoding("half_split", "tensor2tensor", first_position)
    encoded = to_numpy(layer(np.zeros((1, 2, 6), "float32"), offset=3))[0]
    expected = reference.tensor2tensor_sinusoids(2, 6, 3, first_position)
    np.testing.assert_allclose(encoded, expected, atol=1e-6)
    np.testing.assert_allclose(encoded[0, 2], math.sin((3 + first_position) / 10_000), atol=1e-7)


def test_first_two_positions_by_hand():
    encoded = to_numpy(SinusoidalPositionalEncoding()(np.zeros((1, 2, 4), "float32")))[0]
    np.testing.assert_allclose(encoded[0], [0, 1, 0, 1], atol=1e-7)
    second = [math.sin(1), math.cos(1), math.sin(1 / 100), math.cos(1 / 100)]
    np.testing.assert_allclose(encoded[1], second, atol=1e-6)


@pytest.mark.parametrize("layout", TABLES)
def test_positions_are_not_rounded_in_half_precision(layout):
    # bfloat16 has 8 bits and takes 1000 and 1001 for one position; their sines differ by 0.1.
    layer = SinusoidalPositionalEncoding(layout, dtype="mixed_bfloat16")
    encoded = layer(np.zeros((1, 2, 6), "float32"), offset=1000)
    encoded = to_numpy(encoded).astype("float32")[0]
    expected = TABLES[layout](2, 6, offset=1000)
    np.testing.assert_allclose(encoded, expected, atol=2.0**-8)


@pytest.mark.once
@pytest.mark.parametrize("argument", ["layout", "timescales"])
def test_unknown_layout_or_timescales_are_refused(argument):
    with pytest.raises(ValueError, match=f"Received: .*{argument}='diagonal'"):
        SinusoidalPositionalEncoding(**{argument: "diagonal"})


def test_adds_the_row_of_each_position(x):
    layer = LearnedPositionalEncoding(max_length=11)
    layer.build(x.shape)
    randomize(layer)
    rows = weights_of(layer)["position_embeddings"]
    np.testing.assert_allclose(to_numpy(layer(x, offset=3)), x + rows[3 : 3 + T], atol=1e-6)


def test_positions_beyond_the_maximum_are_nan_if_compiled_for_any_offset(x):
    """XLA can't raise an error, and would take the last vector."""
    layer = LearnedPositionalEncoding(max_length=T + 1)
    layer.build(x.shape)
    compiled = compile_function(lambda layer, *inputs: layer(inputs[0], offset=inputs[1]), layer)
    is_nan = np.isnan(to_numpy(compiled(x, np.array(3, "int32"))))
    assert is_nan.all(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2
    assert is_nan.any(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("name", INDICES)
def test_features_are_appended_and_projected(name, x):
    encoding, arguments = INDICES[name]
    layer = encoding(**arguments, concatenate=True)
    layer.build(x.shape)
    randomize(layer)
    expected = reference.encode_positions(weights_of(layer), x, f"{name}_concatenated", LENGTH)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)


def test_index_is_added_to_every_feature(x):
    encoded = to_numpy(IndexPositionalEncoding()(x, offset=3))
    np.testing.assert_allclose(encoded, x + np.array([3, 4, 5, 6, 7])[:, None], atol=1e-6)


def test_normalized_index_is_a_fraction_of_the_maximum():
    encoded = to_numpy(NormalizedIndexPositionalEncoding(max_length=8)(np.ones((1, 5, 2))))
    np.testing.assert_allclose(encoded[0, :, 0], [1, 1.125, 1.25, 1.375, 1.5])
    np.testing.assert_array_equal(encoded[..., 1], encoded[..., 0])


def test_digits_are_added_lowest_first():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 8, 5), "float32")))[0]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(encoded[:7, :3], expected)
    np.testing.assert_array_equal(encoded[7], [1, 1, 1, 0, 0])
