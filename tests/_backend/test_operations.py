"""Affine maps, attention kernels and loops: values and gradients as NumPy computes them."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.masked_attention import K, Problem

from keras_transformer._backend.operations import (
    assign,
    attend,
    custom_gradient,
    of_unknown_shape,
    read,
)

B, T, D = 3, 37, 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_in_a_custom_gradient_is_raised_and_nothing_runs_twice(error):
    runs = []

    def function(x):
        runs.append(x)
        raise error("stop")

    with pytest.raises(error, match="stop"):
        custom_gradient(function)(ops.ones((2,)))
    assert len(runs) == 1


@pytest.mark.once
@pytest.mark.skipif(keras.config.backend() != "torch", reason="a kernel of PyTorch")
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_that_sees_padding_only_sees_it_unmasked(is_causal):
    inputs = Problem(4, 4, d_v=K).inputs
    given = np.array([[False] * 4, [False, True, True, True]])
    heads = to_numpy(attend(*inputs, ops.convert_to_tensor(given), is_causal))
    whole = to_numpy(attend(*inputs, None, is_causal))
    np.testing.assert_allclose(heads[0], whole[0], rtol=1e-5)
    assert np.allclose(heads[1, :, 0], whole[1, :, 0], rtol=1e-5) == is_causal


def test_unknown_shapes_keep_values_and_free_sizes():
    x = np.ones((2, 0, 3), "float32")
    assert to_numpy(of_unknown_shape(ops.convert_to_tensor(x))).shape == (2, 0, 3)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        graph = tf.function(of_unknown_shape).get_concrete_function(tf.constant(x))
        assert graph.output_shapes.as_list() == [None, None, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_read_and_assigned_without_copies_that_differ(dtype, tmp_path):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    np.save(tmp_path / "values.npy", values.T)
    mapped = np.load(tmp_path / "values.npy", mmap_mode="r").T  # read-only, not contiguous
    weight = keras.Variable(np.zeros((2, 3)), dtype=dtype)
    assign(weight, mapped)
    np.testing.assert_array_equal(read(weight).astype("float32"), values)
    weight.assign(2 * values)
    np.testing.assert_array_equal(mapped, values)
    np.testing.assert_array_equal(read(weight).astype("float32"), 2 * values)
