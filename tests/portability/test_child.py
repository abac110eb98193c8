"""The process of a backend: order of calls, rounding noise, and calls as Python."""

import functools

import keras
import numpy as np
import pytest
from support import custom_layers
from support.contract import to_numpy
from support.searching import quick_search

from keras_transformer import LanguageModel
from keras_transformer.portability.child import (
    SEARCH_LENGTH,
    Child,
    _expression,
    _is_random,
    search_arrays,
)


@pytest.fixture
def child(tmp_path):
    x = keras.Input((4,))
    y = custom_layers.Block(name="block")(keras.layers.Dropout(0.5, name="dropout")(x))
    keras.Model(x, y, name="model").save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **{"0": np.ones((2, 4), "float32")})
    (tmp_path / "inputs.json").write_text("0")
    return Child(str(tmp_path), ["support.custom_layers"], seed=0)


def test_inner_calls_come_before_outer_ones(child):
    answer = child.walk()
    calls = [name.removesuffix(" output 0") for name in answer["names"] if "output" in name]
    block = "model/block"
    assert calls == ["model/dropout", f"{block}/first", f"{block}/second", block, "model"]
    assert answer["terms"] == 4


def test_noise_is_a_few_units_in_the_last_place_and_weights_are_restored(child):
    before = [to_numpy(weight) for weight in child.model.weights]
    answer = child.outputs()
    arrays = np.load(answer["file"])
    assert 0 < arrays["arr_1"].max() < 100 * 2.0**-23 * np.abs(arrays["arr_0"]).max()
    for weight, value in zip(child.model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_a_step_of_a_random_model_is_without_training(child):
    assert not child.step()["is_training"]
    child.walk()
    answer = child.step("model/block")
    assert answer["is_training"]
    assert answer["names"][:2] == ["gradient 0 input_0", "gradient 1 kernel"]


def test_a_step_changes_no_moving_average(child):
    child.model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    before = [to_numpy(weight) for weight in child.model.weights]
    answer = child.step()
    arrays = dict(zip(answer["names"], np.load(answer["file"]).values(), strict=False))
    (name,) = (x for x in arrays if "moving_mean" in x)
    np.testing.assert_allclose(arrays[name], 0.01, rtol=1e-5)  # ones, with momentum 0.99
    for weight, value in zip(child.model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


class Centered(keras.layers.Layer):
    """Subtracts a moving average, which a call in training changes first."""

    def build(self, shape):
        self.average = self.add_weight((shape[-1],), "zeros", trainable=False, name="average")

    def call(self, x, training=False):
        if training:
            self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.average


def test_a_step_of_a_layer_that_uses_its_moving_average_is_with_training(child):
    child.model = keras.Sequential([keras.Input((4,)), Centered()])
    answer = child.step()
    assert answer["is_training"]
    arrays = dict(zip(answer["names"], np.load(answer["file"]).values(), strict=False))
    (name,) = (x for x in arrays if "average" in x)
    np.testing.assert_allclose(arrays[name], 0.1, rtol=1e-5)


def test_a_saved_file_and_a_saved_call_load(child, tmp_path):
    child.save(str(tmp_path / "saved.keras"))
    loaded, own = (
        np.load(x["file"])["arr_0"]
        for x in (child.load(str(tmp_path / "saved.keras")), child.outputs())
    )
    np.testing.assert_allclose(loaded, own, rtol=1e-6)
    child.walk()
    answer = child.save_call("model/block/first", str(tmp_path), with_training=True)
    assert answer == {"call": ["(arrays['0'], )", "{}"], "is_training": True}
    assert isinstance(keras.saving.load_model(tmp_path / "layer.keras"), custom_layers.Square)


def test_a_call_becomes_python():
    arrays = {}
    text = _expression(({"a": [None, True, 1.5]}, np.ones(2)), arrays)
    assert eval(text, {"arrays": arrays})[0] == {"a": [None, True, 1.5]}
    assert len(arrays) == 1


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1, 16])
def test_a_language_model_of_any_length_is_searched(max_length):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 1, "d_ff": 4}
    model = LanguageModel(9, **sizes, max_length=max_length)
    ids = np.ones((2, min(max_length, 7)), "int32")
    found = search_arrays(model, ids, functools.partial(quick_search, model))
    assert found["ids of 3 beams"].shape == (2, 3, 1 if max_length == 1 else SEARCH_LENGTH)


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_dropout_that_drops_nothing_by_chance_is_random_too(rate):
    dropout = keras.layers.Dropout(rate, seed=1)
    x = np.ones((1, 3), "float32")
    dropout(x)
    assert _is_random(dropout, (x,), {}) == (rate > 0)
