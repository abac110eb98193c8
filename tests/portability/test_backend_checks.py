"""The checks on one backend: a training step by hand, order of calls, tolerances."""

from functools import partial

import keras
import numpy as np
import pytest
from support import custom_layers
from support.contract import assert_same_arrays, to_numpy

from keras_transformer import LanguageModel
from keras_transformer.portability import backend_checks
from keras_transformer.portability.backend_checks import (
    TrainingStep,
    layer_calls,
    measured,
    predict,
    tolerance,
)

EPSILON = 2.0**-23
ONES = np.ones((2, 4), "float32")


@pytest.fixture
def model():
    x = keras.Input((4,))
    y = custom_layers.Block(name="block")(keras.layers.Dropout(0.5, name="dropout")(x))
    return keras.Model(x, y, name="model")


def step(*layers, x):
    model = keras.Sequential([keras.Input(batch_shape=x.shape, dtype=x.dtype.name), *layers])
    before = model.get_weights()
    found = TrainingStep(model).run(x)
    assert_same_arrays(model.get_weights(), before)
    return found


@pytest.mark.each_backend
def test_inner_calls_come_before_outer_ones(model):
    calls = [x.removesuffix(" output 0") for x in layer_calls(model, ONES) if "output" in x]
    block = "model/block"
    assert calls == ["model/dropout", f"{block}/first", f"{block}/second", block, "model"]
    assert keras.Operation.__call__.__module__.startswith("keras.")


@pytest.mark.each_backend
def test_tolerance_is_a_few_units_in_the_last_place_and_weights_are_restored(model):
    before = model.get_weights()
    found = measured(partial(predict, model), model, ONES)["output 0"]
    value, most = found["value"], found["tolerance"]
    np.testing.assert_allclose(value, model.predict(ONES, verbose=0), rtol=1e-6)
    factor = 2 * 4**0.5  # 4 terms: kernels of 4 rows
    assert factor * EPSILON * np.abs(value).max() <= most.max() < 100 * factor * EPSILON
    assert_same_arrays(model.get_weights(), before)


@pytest.mark.each_backend
@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1, 16])
def test_a_language_model_of_any_length_is_searched(max_length):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 1, "d_ff": 4}
    model = LanguageModel(9, **sizes, max_length=max_length)
    found = backend_checks.search(model)(np.ones((2, min(max_length, 7)), "int32"))
    length = 1 if max_length == 1 else max_length + 1 - 7
    assert found["ids"].shape == (2, 3, length)


@pytest.mark.each_backend
def test_gradients_are_those_of_the_mean_of_outputs_times_random_numbers():
    layer, x = keras.layers.Dense(3), np.arange(8, dtype="float32").reshape(4, 2)
    found = step(layer, x=x)
    upstream = np.random.default_rng(0).normal(size=(4, 3)) / 12
    expected = {"gradient 0 kernel": x.T @ upstream, "gradient 1 bias": upstream.sum(axis=0)}
    expected |= {"variable 0 kernel": to_numpy(layer.kernel), "variable 1 bias": np.zeros(3)}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.each_backend
def test_gradients_of_equal_ids_are_added():
    found = step(keras.layers.Embedding(3, 1), x=np.array([[1, 1, 2]], "int32"))
    upstream = np.random.default_rng(0).normal(size=(1, 3, 1))[0] / 3
    expected = [[0.0], upstream[0] + upstream[1], upstream[2]]
    np.testing.assert_allclose(found["gradient 0 embeddings"], expected, rtol=1e-5)


@pytest.mark.each_backend
def test_a_step_updates_moving_averages_and_integers_unless_random_numbers_are_drawn():
    layers = [keras.layers.BatchNormalization(), custom_layers.CountsTwice()]
    found = step(*layers, x=ONES)
    (name,) = (x for x in found if "moving_mean" in x)
    np.testing.assert_allclose(found[name], 0.01, rtol=1e-5)  # ones, with momentum 0.99
    (count,) = (x for name, x in found.items() if "count" in name)
    assert count == (2 if keras.config.backend() == "torch" else 1)
    assert (
        step(keras.layers.Dense(3), custom_layers.CountsTwice(draws=True), x=ONES)[
            "variable 2 count"
        ]
        == 0
    )


@pytest.mark.parametrize(
    ("value", "change", "expected"),
    [
        ([1.0, -8.0], [0.0, 0.0], [8 * EPSILON] * 2),  # an ulp of the largest number
        ([0.0, 1.0], [0.25, 0.0], [0.25] * 2),
        ([1.0, -1e9], [1e-7, 1e3], [EPSILON, 1e3]),  # a large constant hides nothing
        ([1.0, np.nan], [0.0, np.inf], [EPSILON] * 2),  # nor does a change without bounds
        ([3, 4], [0.0, 1.0], [0.0, np.inf]),  # rows of integers
        ([[3, 4], [5, 6]], [[0.0, 1.0], [0.0, 0.0]], [[np.inf] * 2, [0.0] * 2]),
    ],
)
def test_a_tolerance_is_the_largest_change_times_the_factor(value, change, expected):
    found = tolerance(np.array(value), np.array(change), EPSILON, factor=2.0)
    np.testing.assert_allclose(found, np.multiply(expected, 2))
