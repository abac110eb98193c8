"""Models that conform on all backends, and models broken on purpose on one of them."""

import itertools
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from support import custom_layers
from support.command_line import invoke
from support.small_models import VARIANTS, new_model

from keras_transformer import Conformance, UserError, conformance

RUN = Path(__file__).parents[1] / "fixtures" / "4d3302f" / "run"


def check(model, inputs=None):
    """Returns a function that writes the result of `conformance` for `once`."""

    def make(folder):
        result = conformance(model(), inputs, directory=folder / "scripts")
        failures = [(*failure[:4], str(failure.script)) for failure in result.failures]
        largest = (
            {x: [list(d) for d in row.values()] for x, row in result.largest.items()}
            if result.conforms
            else {}
        )
        return {"text": str(result), "failures": failures, "largest": largest}

    return make


def model_of(*layers):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5), *layers, keras.layers.Dense(3)]
    )


def assert_conforms(found, checks):
    assert not found["failures"], found["text"]
    assert list(found["largest"]) == checks
    for row in found["largest"].values():
        assert len(row) == 3
        assert all(difference <= tolerance for _, difference, tolerance, _ in row), found["text"]
    assert all(found["largest"]["outputs"][i][2] < 1e-3 for i in range(3))


def run_script(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_transformer_conforms(once, variant):
    found = once(f"transformer-{variant}", check(lambda: new_model(variant, num_layers=1)))
    assert_conforms(found, ["outputs", "gradients", "training step", "search", "save and load"])
    assert "training=False" in found["text"]  # it has dropout


@pytest.mark.slow
def test_a_layer_of_keras_hub_conforms(once):
    def layer():
        import keras_hub

        return keras_hub.layers.TransformerEncoder(intermediate_dim=7, num_heads=2)

    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    inputs = {"inputs": x, "padding_mask": np.arange(5) < np.array([[3], [5]])}
    found = once("keras-hub", check(layer, inputs))
    assert_conforms(found, ["outputs", "gradients", "training step", "save and load"])
    assert "training=False" not in found["text"]


def test_finds_a_kernel_that_one_backend_transposes(once):
    def model():
        return model_of(custom_layers.Square(name="good"), custom_layers.Block(True, name="block"))

    found = once("broken", check(model))
    ((name, backends, call, message, script),) = found["failures"]
    assert name == "outputs" and "torch" in backends
    assert call.endswith("/block/second")
    shown = run_script(script)
    assert shown.returncode == 1 and "The results differ." in shown.stderr
    assert shown.stdout.startswith("output 0: difference ")
    assert (Path(script).parent / "layer.keras").stat().st_size < 20_000
    assert call in found["text"] and script in found["text"] and " !" in found["text"]


@pytest.mark.slow
def test_finds_a_gradient_that_one_backend_doubles(once):
    found = once("gradient", check(lambda: model_of(custom_layers.Round(name="round"))))
    ((name, backends, call, _, script),) = found["failures"]
    assert name == "gradients" and "jax" in backends and call.endswith("/round")
    assert run_script(script).returncode == 1


@pytest.mark.slow
def test_finds_an_argument_that_is_not_saved(once):
    found = once("untold", check(lambda: model_of(custom_layers.Untold(3.0))))
    ((name, _, call, _, script),) = found["failures"]
    assert name == "save and load" and call is None
    assert "The results differ." in run_script(script).stderr


@pytest.mark.slow
def test_finds_a_layer_that_works_on_one_backend_only(once, monkeypatch):
    if keras.config.backend() != "tensorflow":
        monkeypatch.setattr(custom_layers.OnlyTensorFlow, "call", lambda self, x: x)
    found = once("only", check(lambda: model_of(custom_layers.OnlyTensorFlow(name="only"))))
    assert [(name, backends) for name, backends, *_ in found["failures"]] == [
        ("outputs", ["jax"]),
        ("outputs", ["torch"]),
    ]
    for _, _, call, message, script in found["failures"]:
        assert call.endswith("/only") and "tf.Tensor" in message
        assert "tf.Tensor" in run_script(script).stderr


def test_the_command_compares_a_run(once):
    def make(folder):
        result = invoke("conformance", RUN, "--output", folder)
        return [result.exit_code, result.stdout]

    status, shown = once("run", make)
    assert status == 0, shown
    assert shown.splitlines()[4].startswith("search ")


def test_says_that_one_backend_is_not_enough(monkeypatch):
    module = sys.modules[conformance.__module__]
    monkeypatch.setattr(module, "BACKENDS", ("json", "no_such_backend"))
    with pytest.raises(UserError, match="two backends; no_such_backend is not installed"):
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
