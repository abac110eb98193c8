"""Models that conform on all backends, and models broken on purpose on one of them."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from support import custom_layers
from support.command_line import invoke
from support.small_models import TARGET_V, VARIANTS, V, new_model

from keras_transformer import (
    BertEncoder,
    LanguageModel,
    MaskedLanguageModel,
    UserError,
    conformance,
)
from keras_transformer.portability import Conformance, comparison
from keras_transformer.portability.child import Measured
from keras_transformer.portability.comparison import differences, random_inputs

pytestmark = pytest.mark.once
RUN = Path(__file__).parents[1] / "fixtures" / "trained_run"
EPSILON = 2.0**-23
X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def model_of(*layers):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5), *layers, keras.layers.Dense(3)]
    )


def assert_conforms(found, checks, tolerance=1e-3):
    assert found.conforms, str(found)
    assert list(found.largest) == checks
    for row in found.largest.values():
        assert len(row) == 3 and not any(x.parts for x in row.values()), str(found)
    assert all(x.tolerance < tolerance for x in found.largest["outputs"].values())


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_transformer_conforms(variant):
    found = conformance(new_model(variant, num_layers=1))
    assert_conforms(found, list(comparison.CHECKS))
    assert "training=False" in str(found)  # it has dropout


@pytest.mark.slow
def test_a_transformer_in_mixed_precision_conforms():
    found = conformance(new_model(num_layers=1, dtype="mixed_bfloat16"))
    assert_conforms(found, list(comparison.CHECKS), tolerance=2.0)


@pytest.mark.slow
def test_a_layer_of_keras_hub_conforms():
    import keras_hub

    layer = keras_hub.layers.TransformerEncoder(intermediate_dim=7, num_heads=2)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    found = conformance(layer, {"inputs": x, "padding_mask": np.arange(5) < np.array([[3], [5]])})
    assert_conforms(found, ["outputs", "gradients", "training step", "save and load"])
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
        (lambda: model_of(custom_layers.Round(name="round")), "gradients", "jax", None),
        (lambda: model_of(custom_layers.CountsTwice()), "training step", "torch", None),
    ],
    ids=["kernel", "nested", "nan", "gradient", "counts"],
)
def test_finds_the_layer_that_is_wrong_on_one_backend(model, check, wrong, place, tmp_path):
    found = conformance(model(), X, directory=tmp_path)
    (failure,) = found.failures
    assert failure.check == check and wrong in failure.backends
    assert failure.call is place is None or failure.call.endswith(place)
    assert (failure.call or "the whole model") in str(found)
    assert str(failure.script) in str(found) and " !" in str(found)
    shown = subprocess.run([sys.executable, failure.script], capture_output=True, text=True)
    assert shown.returncode == 1 and f"{check}: " in shown.stdout, shown.stderr
    assert (failure.script.parent / "model.keras").stat().st_size < 30_000


@pytest.mark.slow
def test_finds_an_argument_that_is_not_saved(tmp_path):
    (failure,) = conformance(model_of(custom_layers.Untold(3.0)), directory=tmp_path).failures
    assert failure.check == "save and load" and failure.call is failure.script is None
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_finds_a_layer_that_works_on_one_backend_only(monkeypatch, tmp_path):
    if keras.config.backend() != "tensorflow":
        monkeypatch.setattr(custom_layers.OnlyTensorFlow, "call", lambda self, x: x)
    model = model_of(custom_layers.OnlyTensorFlow(name="only"))
    found = conformance(model, directory=tmp_path).failures
    assert [x[:2] for x in found] == [("outputs", ("jax",)), ("outputs", ("torch",))]
    for failure in found:
        assert "tf.Tensor" in failure.message
        env = {**os.environ, "KERAS_BACKEND": failure.backends[0]}
        shown = subprocess.run([sys.executable, failure.script], capture_output=True, env=env)
        assert shown.returncode == 1 and b"tf.Tensor" in shown.stderr


@pytest.mark.slow
def test_the_command_compares_a_run(tmp_path):
    result = invoke("conformance", RUN, "--output", tmp_path)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[4].startswith("search ")


def test_says_that_one_backend_is_not_enough(monkeypatch):
    monkeypatch.setattr(comparison, "installed_backends", lambda: ["torch"])
    with pytest.raises(UserError, match=r"two backends: pip install .*\[tensorflow\]"):
        conformance(model_of())


def test_a_class_of_the_main_script_is_refused(monkeypatch):
    monkeypatch.setattr(custom_layers.Round, "__module__", "__main__")
    with pytest.raises(ValueError, match="not in the main script"):
        conformance(model_of(custom_layers.Round()))


def test_the_table_names_what_is_missing():
    pairs = list(itertools.combinations(("jax", "torch"), 2))
    largest = {"outputs": {pair: None for pair in pairs}}
    result = Conformance(["jax", "torch"], ["tensorflow"], largest, [], 4, True)
    assert result.conforms
    assert "not installed: tensorflow" in str(result)
    assert "2 sqrt(4)" in str(result)


def test_a_layer_needs_inputs():
    with pytest.raises(ValueError, match="`inputs` must be given"):
        conformance(keras.layers.Dense(2))


def measured(noise=0.0, **values):
    values = {name: np.array(x) for name, x in values.items()}
    noises = {
        name: np.broadcast_to(noise, x.shape if x.dtype.kind == "f" else x.shape[:1])
        for name, x in values.items()
    }
    return Measured(values, noises, EPSILON, 4)


def compare(one, other, noise=0.0):
    (found,) = differences(measured(noise, x=one), measured(noise, x=other))
    return found


def test_tolerance_is_the_noise_times_the_root_of_the_terms():
    found = compare([1.0, -8.0], [1.0, -8.0])
    assert found.tolerance == pytest.approx(2 * 2 * 8 * EPSILON)  # noise: an ulp of the largest
    assert not found.parts and found.ratio == 0
    assert compare([1.0], [1.0], noise=0.25).tolerance == 1.0
    assert compare([0.0], [0.0]).ratio == 0 and compare([1], [2]).ratio > 1e200


@pytest.mark.parametrize(
    ("one", "other", "noise", "parts"),
    [
        ([1.0], [1.0 + 3 * EPSILON], 0.0, False),
        ([1.0], [1.0 + 5 * EPSILON], 0.0, True),
        ([np.nan], [1.0], 0.0, True),
        ([[1.0, -1e9]], [[6.0, -1e9]], [[1e-7, 64.0]], True),  # a large constant hides nothing
        ([1.0, -1e9], [1.0, -1e9 + 64], 0.0, False),
        ([1.0, -1e9], [1.0, -2e9], 0.0, True),
        ([1e7, 2e7], [1e7, 9e7], 0.0, True),  # no number is small
        ([1.0, np.nan], [6.0, np.nan], [0.0, np.inf], True),  # noise without bounds hides nothing
        ([1.0], [1.0, 2.0], 0.0, True),
        ([[1], [2], [3]], [[1], [5], [6]], [0.0, 0.0, 1.0], True),
        ([[1], [2]], [[1], [5]], [0.0, 1.0], False),  # the row that rounding changes
    ],
)
def test_what_exceeds_the_tolerance_parts(one, other, noise, parts):
    assert compare(one, other, noise).parts is parts


def test_an_array_of_one_backend_parts():
    more, less = measured(x=[1.0], y=[2]), measured(x=[1.0])
    for found in (differences(more, less), differences(less, more)):
        assert [(x.name, x.parts) for x in found] == [("x", False), ("y", True)]


def test_ids_are_below_each_vocabulary_size_and_end_with_padding():
    a, b = (keras.Input((None,), dtype="int32", name=name) for name in "ab")
    x = keras.layers.Embedding(50, 2)(a) + keras.layers.Embedding(3, 2)(b)
    inputs = random_inputs(keras.Model({"a": a, "b": b}, x))
    assert inputs["b"].max() == 2 and 10 < inputs["a"].max() < 50
    assert all((ids[0, -2:] == 0).all() and ids[1:].all() for ids in inputs.values())


def test_a_transformer_gets_ids_of_both_vocabularies_and_its_own_padding():
    inputs = random_inputs(new_model("all_at_once"))
    assert all(ids.max() < min(V, TARGET_V) for ids in inputs.values())
    assert (inputs["source_ids"][0, -2:] == 5).all() and (inputs["source_ids"] == 5).sum() == 2


def test_positions_segments_and_padding_of_bert_are_valid():
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
