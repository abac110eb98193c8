"""Sines and cosines of §3.5."""

import math

import numpy as np
import pytest
from support import reference
from support.contract import to_numpy

from keras_transformer.layers import SinusoidalPositionalEncoding

B, T, D = 2, 11, 7

TABLES = {
    "interleaved": reference.sinusoids,
    "half_split": reference.half_split_sinusoids,
}


@pytest.mark.parametrize("d_model", [D, 6])
@pytest.mark.parametrize("layout", TABLES)
def test_agrees_with_reference(layout, d_model):
    x = np.random.default_rng(0).normal(size=(B, T, d_model)).astype("float32")
    encoded = to_numpy(SinusoidalPositionalEncoding(layout)(x))
    np.testing.assert_allclose(encoded, x + TABLES[layout](T, d_model), atol=1e-5)


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
def test_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="Received: layout='diagonal'"):
        SinusoidalPositionalEncoding("diagonal")
