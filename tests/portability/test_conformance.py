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
from support.contract import to_numpy
from support.small_models import TARGET_V, VARIANTS, V, new_model

from keras_transformer import (
    BertEncoder,
    LanguageModel,
    MaskedLanguageModel,
    UserError,
    conformance,
)
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.portability import Conformance
from keras_transformer.portability.conformance import (
    _tensors_of,
    _write_model,
    as_model,
    random_inputs,
)

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


def assert_conforms(found, checks, tolerance=1e-3):
    assert not found["failures"], found["text"]
    assert list(found["largest"]) == checks
    for row in found["largest"].values():
        assert len(row) == 3
        assert all(difference <= allowed for _, difference, allowed, _ in row), found["text"]
    assert all(found["largest"]["outputs"][i][2] < tolerance for i in range(3))


def run_script(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_transformer_conforms(once, variant):
    found = once(f"transformer-{variant}", check(lambda: new_model(variant, num_layers=1)))
    assert_conforms(found, ["outputs", "gradients", "training step", "search", "save and load"])
    assert "training=False" in found["text"]  # it has dropout


@pytest.mark.slow
def test_a_transformer_in_mixed_precision_conforms(once):
    found = once("mixed", check(lambda: new_model(num_layers=1, dtype="mixed_bfloat16")))
    checks = ["outputs", "gradients", "training step", "search", "save and load"]
    assert_conforms(found, checks, tolerance=2.0)


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


@pytest.mark.slow
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
        assert call.endswith("only") and "tf.Tensor" in message
        assert "tf.Tensor" in run_script(script).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "check_name", "place"),
    [
        (lambda: model_of(custom_layers.CountsTwice(name="twice")), "training step", "/twice"),
        (lambda: custom_layers.Nested(name="nested"), "outputs", "nested/inner/broken"),
        (lambda: model_of(custom_layers.SometimesNaN(name="nan")), "outputs", "/nan"),
    ],
    ids=["counts", "nested", "nan"],
)
def test_finds_a_layer_that_is_wrong_on_pytorch(once, model, check_name, place, request):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    found = once(request.node.callspec.id, check(model, x))
    ((name, backends, call, _, script),) = found["failures"]
    assert name == check_name and "torch" in backends and call.endswith(place)
    assert "The results differ." in run_script(script).stderr


@pytest.mark.slow
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
    with pytest.raises(UserError, match=r"two backends: pip install .*\[no_such_backend\]"):
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


def test_positions_of_masked_tokens_are_positions():
    encoder = BertEncoder(30, num_layers=1, d_model=4, num_heads=1, d_ff=4, max_length=9)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert inputs["masked_positions"].max() < inputs["token_ids"].shape[1]
    assert inputs["token_ids"].max() > 10


def test_inputs_have_the_dtypes_and_shapes_of_the_model():
    x = keras.Input((3, None), dtype="float16")
    mask = keras.Input((3,), batch_size=2, dtype="bool")
    found = random_inputs(keras.Model([x, mask], keras.ops.where(mask[..., None], x, 0)))
    assert [array.dtype for array in found] == ["float16", "bool"]
    assert found[0].shape[1] == 3 and found[1].shape == (2, 3)


def test_a_sequential_model_has_one_input():
    assert random_inputs(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])).shape[
        1:
    ] == (4,)


def test_a_layer_becomes_a_model_with_its_arguments_by_name():
    x = np.ones((2, 3, 4), "float32")
    layer = keras.layers.MultiHeadAttention(2, 3)
    model = as_model(layer, {"query": x, "value": x})
    assert model.output_shape == (None, 3, 4)
    assert as_model(keras.layers.Dense(2), x).output_shape == (None, 3, 2)


def test_call_arguments_of_a_layer_may_be_plain_values():
    x = np.ones((2, 3, 8), "float32")
    inputs = {"query": x, "use_causal_mask": True, "padding_mask": None}
    layer = MultiHeadAttention(8, 2)
    model = as_model(layer, inputs)
    assert model.input.keys() == _tensors_of(layer, inputs).keys() == {"query"}
    x[:, -1] = 5.0
    outputs = model.predict_on_batch({"query": x})
    np.testing.assert_allclose(outputs[:, :2], outputs[:, :1].repeat(2, axis=1), rtol=1e-5)


def test_ids_that_no_embedding_reads_vary():
    ids = keras.Input((5,), dtype="int32")
    found = random_inputs(keras.Model(ids, keras.ops.one_hot(ids, 4)))
    assert set(found.flat) == {0, 1, 2}


def test_says_what_is_needed():
    with pytest.raises(ValueError, match="must be a Keras model or layer"):
        as_model("model.keras", None)
    with pytest.raises(ValueError, match="`inputs` must be given for a layer"):
        as_model(keras.layers.Dense(2), None)
    with pytest.raises(ValueError, match="that is not functional"):
        random_inputs(keras.Model())


def test_weights_of_zeros_are_random_in_the_file_and_zeros_again_in_the_model(tmp_path):
    head = keras.layers.Dense(2, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), head])
    (outputs,) = _write_model(model, np.ones((1, 3), "float32"), 0, tmp_path)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    assert outputs.any() and all(to_numpy(x).all() for x in saved.trainable_variables)
    assert not any(to_numpy(x).any() for x in model.trainable_variables)


def test_few_segments_include_that_of_padding_and_nested_embeddings_are_found():
    encoder = BertEncoder(20, 1, 8, 2, 16, max_length=9, num_segments=2)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert inputs["token_ids"].max() > 2 and set(inputs["segment_ids"].ravel()) == {0, 1}
    one = BertEncoder(20, 1, 8, 2, 16, max_length=9, num_segments=1)
    assert not random_inputs(one)["segment_ids"].any()


def test_inputs_fit_the_longest_sequence_and_padding_is_a_valid_id():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    assert random_inputs(LanguageModel(20, **sizes, max_length=4)).shape[1] == 4
    encoder = BertEncoder(20, **sizes, max_length=16, num_segments=2, pad_id=5)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert (inputs["token_ids"][0, -2:] == 5).all()
    assert set(inputs["segment_ids"].ravel()) == {0, 1}
    assert set(inputs["masked_positions"][1:].ravel()) - {5}
