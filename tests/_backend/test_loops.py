"""Loops: order, count, what they carry, and shapes that change."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy

from keras_transformer._backend.loops import of_unknown_shape, sequential_loop


@pytest.mark.parametrize("count", [0, 1, 7])
def test_carries_from_pass_to_pass(count):
    def body(index, digits, total):
        return 10 * digits + ops.cast(index, "float32"), total + index

    begin = (ops.zeros((2,), "float32"), ops.convert_to_tensor(0, "int32"))
    digits, total = sequential_loop(ops.convert_to_tensor(count, "int32"), body, begin)
    expected = sum(index * 10 ** (count - 1 - index) for index in range(count))
    np.testing.assert_array_equal(to_numpy(digits), [expected] * 2)
    assert to_numpy(total) == sum(range(count))


def test_unknown_shapes_change_nothing_but_what_a_loop_may_do():
    x = np.ones((2, 0, 3), "float32")
    assert to_numpy(of_unknown_shape(ops.convert_to_tensor(x))).shape == (2, 0, 3)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        graph = tf.function(of_unknown_shape).get_concrete_function(tf.constant(x))
        assert graph.output_shapes.as_list() == [None, None, 3]
