"""Slopes by hand, and the bias that they give."""

import numpy as np
import pytest
from keras import ops
from support import reference
from support.contract import to_numpy

from keras_transformer.layers import ALiBiPositionalEncoding

B, T, D, H = 2, 5, 7, 3


@pytest.mark.parametrize(
    "num_heads, slopes",
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2.0**-n for n in range(1, 9)]),
        # Those of 2 heads, then every second one of 4 heads.
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_are_those_of_the_publication(num_heads, slopes):
    bias = ALiBiPositionalEncoding(num_heads).score_bias(ops.convert_to_tensor([1], "int32"))
    np.testing.assert_allclose(-to_numpy(bias)[:, 0], slopes, rtol=1e-6)
    np.testing.assert_allclose(reference.alibi_slopes(num_heads), slopes, rtol=1e-6)


def test_bias_falls_with_the_distance_to_both_sides():
    distance = ops.convert_to_tensor([[-2, -1, 0], [1, 2, 3]], "int32")
    bias = to_numpy(ALiBiPositionalEncoding(2).score_bias(distance))
    expected = np.array([2**-4, 2**-8])[:, None, None] * -np.array([[2, 1, 0], [1, 2, 3]])
    np.testing.assert_allclose(bias, expected, rtol=1e-6)
