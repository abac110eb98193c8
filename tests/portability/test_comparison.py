"""Models that conform on all backends or are broken on one of them, and each check by hand."""

from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from support import custom_layers
from support.command_line import invoke
from support.contract import assert_same_arrays, to_numpy
from support.small_models import TARGET_V, VARIANTS, V, new_model

from keras_transformer import (
    BertEncoder,
    LanguageModel,
    MaskedLanguageModel,
    UserError,
    conformance,
)
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.portability import comparison
from keras_transformer.portability.comparison import (
    TrainingStep,
    array_differences,
    layer_calls,
    measured,
    predict,
    record,
    tolerance,
)
from keras_transformer.portability.inputs import model_of_layer, random_inputs

RUN = Path(__file__).parents[1] / "fixtures" / "trained_run"
EPSILON = 2.0**-23
ONES = np.ones((2, 4), "float32")
X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def model_of(*layers):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5), *layers, keras.layers.Dense(3)]
    )


def assert_conforms(found, checks, tolerance=1e-3):
    assert found.conforms, str(found)
    assert list(found.largest) == [*checks, "save and load"]
    for row in found.largest.values():
        assert len(row) == 3 and not any(x.is_error for x in row.values()), str(found)
    assert all(x.tolerance < tolerance for x in found.largest["outputs"].values())


@pytest.mark.slow  # The process of each backend does not know the patterns of a recipe.
@pytest.mark.parametrize(
    "variant", sorted(VARIANTS.keys() - {"strided_attention", "fixed_attention"})
)
def test_a_transformer_conforms(variant):
    found = conformance(new_model(variant, num_layers=1))
    assert_conforms(found, ["outputs", "training step", "search"])
    assert "training=False" in str(found)  # it has dropout


@pytest.mark.slow
def test_a_transformer_in_mixed_precision_conforms():
    found = conformance(new_model(num_layers=1, dtype="mixed_bfloat16"))
    assert_conforms(found, ["outputs", "training step", "search"], tolerance=2.0)


@pytest.mark.slow
def test_a_layer_of_keras_hub_conforms():
    import keras_hub

    layer = keras_hub.layers.TransformerEncoder(intermediate_dim=7, num_heads=2)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    found = conformance(layer, {"inputs": x, "padding_mask": np.arange(5) < np.array([[3], [5]])})
    assert_conforms(found, ["outputs", "training step"])
    assert "training=False" not in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "check", "wrong", "place"),
    [
        (
            lambda: model_of(custom_layers.Square(), custom_layers.Block(True, name="block")),
            *("outputs", "torch", "/block/second"),
        ),
        (lambda: custom_layers.Nested(name="nested"), "outputs", "torch", "nested/inner/broken"),
        (lambda: model_of(custom_layers.SometimesNaN(name="nan")), "outputs", "torch", "/nan"),
        (lambda: model_of(custom_layers.Round()), "training step", "jax", "the whole model"),
        (lambda: model_of(custom_layers.CountsTwice()), "training step", "torch", "model"),
    ],
    ids=["kernel", "nested", "nan", "gradient", "counts"],
)
def test_finds_the_layer_that_is_wrong_on_one_backend(model, check, wrong, place):
    found = conformance(model(), X)
    assert len(found.failures) == 2  # the wrong backend, and each of the others
    for text in found.failures:
        assert text.startswith(f"{check}: ") and f"{place}: " in text and text in str(found)
        assert wrong in text.partition(" differ in ")[0]


@pytest.mark.slow
def test_finds_an_argument_that_is_not_saved():
    found = conformance(model_of(custom_layers.Untold(3.0)))
    assert all(x.startswith("save and load: ") for x in found.failures) and not found.conforms


@pytest.mark.slow
def test_finds_a_layer_that_works_on_one_backend_only(monkeypatch):
    if keras.config.backend() != "tensorflow":
        monkeypatch.setattr(custom_layers.OnlyTensorFlow, "call", lambda self, x: x)
    found = conformance(model_of(custom_layers.OnlyTensorFlow(name="only"))).failures
    assert [x.split(" fails: ")[0] for x in found] == ["outputs: jax", "outputs: torch"]
    assert all("tf.Tensor" in x for x in found), found


@pytest.mark.slow
def test_the_command_compares_a_run():
    result = invoke("conformance", RUN)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[3].startswith("search ")


def test_a_process_reports_an_error_or_its_end(tmp_path):
    name = keras.config.backend()
    (tmp_path / "inputs.json").write_text("")
    answers = comparison._run(["outputs"], [name], str(tmp_path), [])
    error = (
        "the process ended with status 1: json.decoder.JSONDecodeError: "
        "Expecting value: line 1 column 1 (char 0)"
    )
    assert answers["outputs"][name] == error


def test_what_cannot_be_compared_is_refused(monkeypatch):
    with pytest.raises(UserError, match=r"not functional .* Received: model=<Dense"):
        conformance(keras.layers.Dense(2))
    own = type("Own", (keras.layers.Layer,), {"__module__": "__main__", "call": lambda _, x: x})
    with pytest.raises(UserError, match="must be in a module.* Received: 'Own'"):
        conformance(own(), np.ones((2, 3)))
    monkeypatch.setattr(comparison, "installed_backends", lambda: ["torch"])
    with pytest.raises(UserError, match=r"two backends: pip install .*\[tensorflow\]"):
        conformance(model_of())


def test_a_layer_becomes_a_model_of_the_tensors_among_its_arguments():
    x = np.ones((2, 3, 8), "float32")
    given = {"query": x, "use_causal_mask": True, "padding_mask": None}
    model, inputs = model_of_layer(MultiHeadAttention(8, 2), given)
    assert len(inputs) == 1 and inputs[0] is x
    x[:, -1] = 5.0
    (outputs,) = keras.tree.flatten(model.predict_on_batch(inputs))
    np.testing.assert_allclose(outputs[:, :2], outputs[:, :1].repeat(2, axis=1), rtol=1e-5)
    model, inputs = model_of_layer(keras.layers.Dense(2), x)
    assert model.outputs[0].shape == (2, 3, 2) and len(inputs) == 1


def test_a_difference_above_the_tolerance_of_both_backends_is_an_error():
    def found(one, other, tolerance=0.5, other_tolerance=0.25):
        pair = zip((one, other), (tolerance, other_tolerance), strict=True)
        given = (record([np.array(x), np.broadcast_to(y, np.shape(x))]) for x, y in pair)
        return array_differences(*({"x": x} for x in given))[0]

    assert found([1.0, 2.0], [1.25, 2.5]) == ("x", 0.5, 0.5)
    assert not found([1.0, 2.0], [1.25, 2.5]).is_error
    assert str(found([1.0, 2.0], [1.0, 2.75])) == "7.5e-01 / 5.0e-01 !"
    assert found([1, 2], [1, 3], 0.0, 0.0).is_error and not found([1, 2], [1, 3], np.inf).is_error
    for other in ([1.0], [1, 2], [[1.0, 2.0]], [1.0, np.nan]):
        assert found([1.0, 2.0], other).largest == np.inf
    one, other = ({"x": record([np.ones(1), np.ones(1)])}, {})
    assert [x.is_error for x in array_differences(one, other)] == [True]
    assert not found([], []).is_error
    assert found([np.nan, np.inf, 1.0], [np.nan, np.inf, 2.0]).largest == 1


def test_inputs_of_a_transformer_and_of_bert_are_valid():
    inputs = random_inputs(new_model("all_at_once"))
    assert all(ids.max() < min(V, TARGET_V) for ids in inputs.values())
    assert (inputs["source_ids"][0, -2:] == 5).all() and (inputs["source_ids"] == 5).sum() == 2
    encoder = BertEncoder(20, 1, 8, 2, 16, max_length=9, num_segments=2, pad_id=5)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert inputs["token_ids"].max() > 10 and (inputs["token_ids"][0, -2:] == 5).all()
    assert set(inputs["segment_ids"].ravel()) == {0, 1}
    assert inputs["masked_positions"].max() < inputs["token_ids"].shape[1]


def test_inputs_have_the_dtypes_and_shapes_of_the_model():
    x = keras.Input((3, None), dtype="float16")
    mask = keras.Input((3,), batch_size=2, dtype="bool")
    found = random_inputs(keras.Model([x, mask], keras.ops.where(mask[..., None], x, 0)))
    assert [array.dtype for array in found] == ["float16", "bool"]
    assert found[0].shape[1] == 3 and found[1].shape == (2, 3)
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    assert random_inputs(LanguageModel(20, **sizes, max_length=4)).shape[1] == 4


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
    found = comparison.search(model)(np.ones((2, min(max_length, 7)), "int32"))
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
