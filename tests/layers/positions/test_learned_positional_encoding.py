"""A trained vector for every position."""

import numpy as np
import pytest
from support.contract import randomize, to_numpy, weights_of

from keras_transformer import compile_function
from keras_transformer.layers import LearnedPositionalEncoding

B, T, D = 2, 5, 7


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


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
