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
from support.contract import to_numpy
from support.small_models import VARIANTS, new_model

from keras_transformer import UserError, conformance
from keras_transformer.portability import Conformance, comparison
from keras_transformer.portability.comparison import _save_without_zeros

pytestmark = pytest.mark.once
RUN = Path(__file__).parents[1] / "fixtures" / "trained_run"
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
        (lambda: model_of(custom_layers.Round(name="round")), "gradients", "jax", "/round"),
        (
            lambda: model_of(custom_layers.CountsTwice(name="twice")),
            *("training step", "torch", "/twice"),
        ),
    ],
    ids=["kernel", "nested", "nan", "gradient", "counts"],
)
def test_finds_the_layer_that_is_wrong_on_one_backend(model, check, wrong, place, tmp_path):
    found = conformance(model(), X, directory=tmp_path)
    (failure,) = found.failures
    assert failure.check == check and wrong in failure.backends
    assert failure.call.endswith(place)
    assert failure.call in str(found) and str(failure.script) in str(found) and " !" in str(found)
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
    assert [x[:3] for x in found] == [
        ("outputs", ("jax",), "only"),
        ("outputs", ("torch",), "only"),
    ]
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


def test_weights_of_zeros_are_random_in_the_file_and_zeros_again_in_the_model(tmp_path):
    head = keras.layers.Dense(2, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), head])
    inputs = np.ones((1, 3), "float32")
    (outputs,) = _save_without_zeros(model, inputs, 0, tmp_path / "model.keras").values()
    saved = keras.saving.load_model(tmp_path / "model.keras")
    assert outputs.any() and all(to_numpy(x).all() for x in saved.trainable_variables)
    assert not any(to_numpy(x).any() for x in model.trainable_variables)
