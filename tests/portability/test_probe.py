"""Gradients and a training step of a layer, compared with values derived by hand."""

import keras
import numpy as np
import pytest
from support import custom_layers
from support.contract import to_numpy

from keras_transformer.portability.probe import LEARNING_RATE, Probe, as_array


def test_gradients_are_those_of_the_mean_of_outputs_times_random_numbers():
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    x = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "float32")
    before = [to_numpy(weight) for weight in layer.weights]
    found = Probe(layer, (x,), {}, seed=1).step((x,), {})
    upstream = np.random.default_rng(1).normal(size=(4, 3)) / 12
    expected = {
        "gradient 1 kernel": x.T @ upstream,
        "gradient 2 bias": upstream.sum(axis=0),
        "gradient 0 input_0": upstream @ before[0].T,
    }
    expected["variable 0 kernel"] = before[0] - LEARNING_RATE * expected["gradient 1 kernel"]
    expected["variable 1 bias"] = before[1] - LEARNING_RATE * expected["gradient 2 bias"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    for weight, value in zip(layer.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_gradients_are_those_of_the_weights_before_the_step():
    x = keras.Input((5,))
    dense, scale = keras.layers.Dense(4), custom_layers.Scale()
    model = keras.Model(x, scale(dense(x)))
    given = np.random.default_rng(1).normal(size=(3, 5)).astype("float32")
    upstream = np.random.default_rng(0).normal(size=(3, 4)) / 12
    expected = (given @ to_numpy(dense.kernel) * upstream).sum(axis=0)
    probe = Probe(model, (given,), {})
    for _ in range(30):  # TensorFlow is wrong in some steps if one graph updates weights too
        found = probe.step((given,), {})
        np.testing.assert_allclose(found["gradient 3 scale"], expected, atol=1e-6)


def test_integers_after_a_step_are_compared_but_seeds_are_not():
    layer = custom_layers.Counter()
    x = np.ones((2, 4), "float32")
    probe = Probe(layer, (x,), {}, is_training=True)
    before = to_numpy(layer.count)
    found = probe.step((x,), {})
    assert [name for name in found if "variable" in name] == ["variable 0 count"]
    assert found["variable 0 count"] == before + 1 and to_numpy(layer.count) == before


def test_a_second_step_takes_its_own_inputs():
    layer = keras.layers.Dense(1, use_bias=False)
    probe = Probe(layer, (np.ones((1, 1), "float32"),), {})
    one, two = (probe.step((np.full((1, 1), x, "float32"),), {}) for x in (1, 2))
    np.testing.assert_allclose(two["gradient 1 kernel"], 2 * one["gradient 1 kernel"])


def test_what_has_no_float_output_has_no_step():
    layer = keras.layers.Discretization([0.5])
    x = np.zeros((2, 1), "float32")
    assert Probe(layer, (x,), {}).step((x,), {}) == {}


def test_gradients_of_equal_ids_are_added():
    layer, ids = keras.layers.Embedding(3, 1), np.array([[1, 1, 2]])
    found = Probe(layer, (ids,), {}).step((ids,), {})
    upstream = np.random.default_rng(0).normal(size=(1, 3, 1))[0] / 3
    expected = [[0.0], upstream[0] + upstream[1], upstream[2]]
    np.testing.assert_allclose(found["gradient 0 embeddings"], expected, rtol=1e-5)


def test_a_structure_of_floats_and_integers_is_one_argument():
    x, mask = keras.Input((2,), name="x"), keras.Input((2,), dtype="bool", name="mask")
    model = keras.Model({"x": x, "mask": mask}, keras.ops.where(mask, x, 0.0))
    inputs = {"x": np.ones((1, 2), "float32"), "mask": np.array([[True, False]])}
    (name,) = found = Probe(model, (inputs,), {}).step((inputs,), {})
    upstream = np.random.default_rng(0).normal(size=(1, 2)) / 2
    assert name == "gradient 0 input_0"
    np.testing.assert_allclose(found[name], upstream * [[1, 0]], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_tensors_and_arrays_of_all_floats_become_float32(dtype):
    tensor = keras.ops.cast([1.5, -2.0], dtype)
    for x in (tensor, np.array(keras.ops.convert_to_numpy(tensor)), keras.Variable(tensor)):
        found = as_array(x)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [1.5, -2.0])
