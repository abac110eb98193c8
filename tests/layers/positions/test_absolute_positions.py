"""Sines and cosines of §3.5, trained vectors, indices and binary digits."""

import math

import numpy as np
import pytest
from ablation_layers import BinaryPositionalEncoding
from support import reference
from support.contract import to_numpy

from keras_transformer import compile_function
from keras_transformer.layers import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)

B, T, D, LENGTH = 2, 5, 7, 11
TABLES = {
    "interleaved": reference.sinusoids,
    "half_split": reference.half_split_sinusoids,
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


def test_positions_beyond_the_maximum_are_nan_if_compiled_for_any_offset(x):
    """XLA can't raise an error, and would take the last vector."""
    layer = LearnedPositionalEncoding(max_length=T + 1)
    layer.build(x.shape)
    compiled = compile_function(lambda layer, *inputs: layer(inputs[0], offset=inputs[1]), layer)
    is_nan = np.isnan(to_numpy(compiled(x, np.array(3, "int32"))))
    assert is_nan.all(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2
    assert is_nan.any(axis=(0, 2)).tolist() == [False] * 3 + [True] * 2


def test_digits_are_added_lowest_first_and_are_no_more_than_needed():
    encoded = to_numpy(BinaryPositionalEncoding(max_length=8)(np.zeros((1, 8, 5), "float32")))[0]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(encoded[:7, :3], expected)
    np.testing.assert_array_equal(encoded[7], [1, 1, 1, 0, 0])
