"""The process of a backend: a training step by hand, order of calls, and rounding noise."""

from contextlib import ExitStack

import keras
import numpy as np
import pytest
from support import custom_layers
from support.contract import to_numpy

from keras_transformer import LanguageModel
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.portability.child import (
    LEARNING_RATE,
    Child,
    Probe,
    change,
    draws_random_numbers,
    functional_model,
)
from keras_transformer.portability.comparison import Backends


@pytest.fixture
def child(tmp_path):
    x = keras.Input((4,))
    y = custom_layers.Block(name="block")(keras.layers.Dropout(0.5, name="dropout")(x))
    keras.Model(x, y, name="model").save(tmp_path / "model.keras")
    return Child(tmp_path, np.ones((2, 4), "float32"), 0, ["support.custom_layers"])


def test_inner_calls_come_before_outer_ones(child):
    found = child.walk()
    calls = [name.removesuffix(" output 0") for name in found.values if "output" in name]
    block = "model/block"
    assert calls == ["model/dropout", f"{block}/first", f"{block}/second", block, "model"]
    assert found.terms == 4


def test_noise_is_a_few_units_in_the_last_place_and_weights_are_restored(child):
    before = [to_numpy(weight) for weight in child.model.weights]
    found = child.outputs()
    size = np.abs(found.values["output 0"]).max()
    assert 0 < found.noise["output 0"].max() < 100 * 2.0**-23 * size
    for weight, value in zip(child.model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_a_step_with_training_compares_moving_averages_and_restores_them(child):
    child.model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    before = [to_numpy(weight) for weight in child.model.weights]
    found = child.step()
    (name,) = (x for x in found.values if "moving_mean" in x)
    np.testing.assert_allclose(found.values[name], 0.01, rtol=1e-5)  # ones, with momentum 0.99
    for weight, value in zip(child.model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_a_saved_file_and_a_saved_call_load(child, tmp_path):
    assert draws_random_numbers(child.model)
    child.save()
    for loaded in child.load():  # of model.keras and of the saved file
        np.testing.assert_allclose(
            loaded["output 0"], child.outputs().values["output 0"], rtol=1e-6
        )
    assert len(child.load()) == 2
    walk = child.walk()
    inputs = child.save_call("model/block/first", tmp_path / "call.keras")
    saved = keras.saving.load_model(tmp_path / "call.keras")
    outputs = saved.predict_on_batch(inputs)
    (found,) = keras.tree.flatten(outputs)
    np.testing.assert_allclose(found, walk.values["model/block/first output 0"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1, 16])
def test_a_language_model_of_any_length_is_searched(max_length, tmp_path):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 1, "d_ff": 4}
    LanguageModel(9, **sizes, max_length=max_length).save(tmp_path / "model.keras")
    found = Child(tmp_path, np.ones((2, min(max_length, 7)), "int32"), 0, []).search()
    length = 1 if max_length == 1 else max_length + 1 - 7
    assert found.values["ids of 3 beams"].shape == (2, 3, length)


def test_a_process_answers_and_reports_errors_until_it_ends(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(tmp_path / "model.keras")
    name, inputs = keras.config.backend(), np.ones((1, 2), "float32")
    with ExitStack() as stack:
        backends = Backends([name], tmp_path, (inputs, 0, []), stack)
        found = backends.ask("outputs")[name]
        assert found.values["output 0"].shape == (1, 3)
        assert found.noise["output 0"].max() > 0 and found.terms == 2
        assert backends.ask("save_call", "none", tmp_path)[name] == "KeyError: 'none'"
        backends.processes[name].kill()
        assert "the process ended with status -9" in backends.ask("outputs")[name]
        backends = Backends([name], tmp_path, (inputs, 0, ["no_such_module"]), stack)
        assert "ModuleNotFoundError: No module named" in backends.ask("outputs")[name]


def test_gradients_are_those_of_the_mean_of_outputs_times_random_numbers():
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    x = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "float32")
    before = [to_numpy(weight) for weight in layer.weights]
    found = Probe(layer, x, seed=1).step(x)
    upstream = np.random.default_rng(1).normal(size=(4, 3)) / 12
    expected = {
        "gradient 0 kernel": x.T @ upstream,
        "gradient 1 bias": upstream.sum(axis=0),
    }
    expected["variable 0 kernel"] = before[0] - LEARNING_RATE * expected["gradient 0 kernel"]
    expected["variable 1 bias"] = before[1] - LEARNING_RATE * expected["gradient 1 bias"]
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
    probe = Probe(model, given)
    for _ in range(30):  # TensorFlow is wrong in some steps if one graph updates weights too
        found = probe.step(given)
        np.testing.assert_allclose(found["gradient 2 scale"], expected, atol=1e-6)


def test_integers_after_a_step_are_compared_but_seeds_are_not():
    x, layer = np.ones((2, 4), "float32"), custom_layers.Counter()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), layer])
    probe = Probe(model, x, is_training=True)
    before = to_numpy(layer.count)
    found = probe.step(x)
    names = ["variable 0 kernel", "variable 1 bias", "variable 2 count"]
    assert [name for name in found if "variable" in name] == names
    assert found["variable 2 count"] == before + 1 and to_numpy(layer.count) == before


def test_gradients_of_equal_ids_are_added():
    layer, ids = keras.layers.Embedding(3, 1), np.array([[1, 1, 2]])
    layer.build()
    found = Probe(layer, ids).step(ids)
    upstream = np.random.default_rng(0).normal(size=(1, 3, 1))[0] / 3
    expected = [[0.0], upstream[0] + upstream[1], upstream[2]]
    np.testing.assert_allclose(found["gradient 0 embeddings"], expected, rtol=1e-5)


@pytest.mark.once
def test_change_of_floats_is_by_element_and_infinite_for_a_nan_or_a_shape():
    one, other = np.array([1.0, 2.0, np.nan, np.inf]), np.array([1.5, 2.25, np.nan, np.inf])
    np.testing.assert_array_equal(change(one, other), [0.5, 0.25, 0, 0])
    assert change(np.array([np.nan]), np.array([1.0])) == np.inf
    assert change(np.zeros(2), np.zeros(3)) == np.inf


@pytest.mark.once
def test_a_call_of_a_layer_becomes_a_model_of_its_tensors():
    x = np.ones((2, 3, 8), "float32")
    layer = MultiHeadAttention(8, 2)
    model, inputs = functional_model(layer, query=x, use_causal_mask=True, padding_mask=None)
    assert len(model.inputs) == len(inputs) == 1
    x[:, -1] = 5.0
    (outputs,) = keras.tree.flatten(model.predict_on_batch([x]))
    np.testing.assert_allclose(outputs[:, :2], outputs[:, :1].repeat(2, axis=1), rtol=1e-5)
    assert functional_model(keras.layers.Dense(2), x)[0].outputs[0].shape == (2, 3, 2)
