"""Strided attention equals attention to all pairs with a mask."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.masked_attention import Problem, assert_finite_without_keys

from keras_transformer.layers import StridedAttention


def in_stride(stride):
    return lambda d: (np.abs(d) <= stride) | (d % stride == 0)


@pytest.mark.parametrize("stride, length", [(7, 31), pytest.param(1, 5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_strided_heads_and_gradients_are_those_of_masked_scores(stride, length, is_causal):
    problem = Problem(length, length, in_stride(stride), is_causal, padding=4)
    problem.assert_solved_by(StridedAttention(stride))


def test_strided_attention_without_tokens_is_finite():
    assert_finite_without_keys(StridedAttention(2))


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_stride_holds_in_a_graph_for_all_lengths(is_causal):
    pattern = StridedAttention(3)
    x = np.random.default_rng(0).normal(size=(2, 1, 11, 4)).astype("float32")

    def attend(x):
        return pattern(x, x, x, use_causal_mask=is_causal)

    expected = attend(ops.convert_to_tensor(x))
    found = for_all_lengths(attend, x.shape)(x)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-6)


def for_all_lengths(function, shape):
    """The function in a graph that does not know the length; on PyTorch there is none."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, input_signature=[tf.TensorSpec((*shape[:2], None, shape[3]))])
    if keras.backend.backend() == "torch":
        return lambda x: function(ops.convert_to_tensor(x))
    import jax

    symbols = jax.export.symbolic_shape(f"{shape[0]}, {shape[1]}, t, {shape[3]}")
    return jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(symbols, "float32")).call


def test_neighbours_and_multiples_are_allowed():
    allowed = to_numpy(StridedAttention(3).allows(np.arange(-8, 9)))
    expected = [-6, -3, -2, -1, 0, 1, 2, 3, 6]
    np.testing.assert_array_equal(np.arange(-8, 9)[allowed], expected)


def test_a_stride_of_zero_is_refused():
    with pytest.raises(ValueError, match="Received: stride=0"):
        StridedAttention(0)
