"""Compiling a function of a model."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy

from keras_transformer import compile_function
from keras_transformer._backend.compile_function import is_on_cpu, makes_graphs


class Counted:
    """`inputs @ kernel * factor`, which counts how often Python runs it."""

    def __init__(self):
        self.runs = 0

    def __call__(self, model, inputs, factor=1):
        self.runs += 1
        return {"output": model(ops.convert_to_tensor(inputs)) * factor}


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.layers[0].kernel.assign(np.ones((3, 2)))
    return model


def runs_of_two_calls():
    """PyTorch runs eagerly; the others trace once."""
    return 2 if keras.config.backend() == "torch" else 1


def test_same_shape_compiles_once(model):
    function = Counted()
    compiled = compile_function(function, model)
    for value in (1.0, 2.0):
        output = to_numpy(compiled(np.full((4, 3), value, "float32"))["output"])
        np.testing.assert_allclose(output, np.full((4, 2), 3 * value))
    assert function.runs == runs_of_two_calls()


def test_many_shapes_give_no_warning(model, caplog):
    compiled = compile_function(Counted(), model)
    for batch in range(1, 9):
        assert to_numpy(compiled(np.ones((batch, 3), "float32"))["output"]).shape == (batch, 2)
    assert not caplog.records


def test_changed_weights_count_without_compiling_again(model):
    function = Counted()
    compiled = compile_function(function, model)
    inputs = np.ones((4, 3), "float32")
    for weight in (1.0, 5.0):
        model.layers[0].kernel.assign(np.full((3, 2), weight))
        output = to_numpy(compiled(inputs)["output"])
        np.testing.assert_allclose(output, np.full((4, 2), 3 * weight))
    assert function.runs == runs_of_two_calls()


def test_options_are_python_values(model):
    compiled = compile_function(Counted(), model)
    inputs = np.ones((4, 3), "float32")
    for factor in (2, 3):
        output = to_numpy(compiled(inputs, factor=factor)["output"])
        np.testing.assert_allclose(output, np.full((4, 2), 3 * factor))


def test_one_graph_for_any_shape(model):
    function = Counted()
    compiled = compile_function(lambda m, x, y: function(m, x[0]), model, any_shape=True)
    for rows in (1, 4, 2):
        inputs = np.ones((rows, 3), "float32")
        output = compiled((inputs, None), np.int32(5))["output"]
        np.testing.assert_allclose(to_numpy(output), np.full((rows, 2), 3))
    assert function.runs == (1 if makes_graphs() else 3)


def test_leaves_no_gradient_behind(model):
    compile_function(Counted(), model)(np.ones((4, 3), "float32"))
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)
    # The gradient of the mean square of 3 - 1 is (3 - 1) for each input of 1; the rate is 0.01.
    np.testing.assert_allclose(to_numpy(model.layers[0].kernel), np.full((3, 2), 1 - 0.02))


def test_tests_run_on_a_cpu():
    assert is_on_cpu()
