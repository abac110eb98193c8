"""The models from before the Transformer: each is the reference, searches, saves and trains."""

import inspect
from pathlib import Path

import before_transformers
import keras
import numpy as np
import pytest
from support import tiny_run
from support.cases import most_once
from support.command_line import python
from support.contract import assert_cached_equals_full_decoding, to_numpy, weights_of
from support.older_models import SIZES, new_model, small_model
from support.older_reference import logits_of
from support.searching import eagerly, quick_search
from support.small_models import TARGET_V, B, T, inputs_of

from keras_transformer import (
    MaskedCrossentropy,
    SearchOptions,
    UserError,
    load_recipe,
)
from keras_transformer._backend.compile_function import compile_function, makes_graphs
from keras_transformer.decoding import Request
from keras_transformer.decoding.decoding_loop import make_strategy, run_stages
from keras_transformer.formats.saved_model import run_signatures
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.sections import ModelSettings
from keras_transformer.runs.run import Run
from keras_transformer.training import train

N, LONGEST = 3, 7
PROGRAM = Path(before_transformers.__file__)
each_architecture = pytest.mark.parametrize("name", SIZES)
on_each_backend = pytest.mark.parametrize("name", most_once(SIZES, "attentional_recurrent"))
with_attention = pytest.mark.parametrize("name", ["attentional_recurrent", "convolutional"])


def beams_of(model):
    """Every beam has its own tokens."""
    return np.random.default_rng(3).integers(4, TARGET_V, (B, N, T)).astype("int32")


@each_architecture
@pytest.mark.parametrize("batch, source, target", [(B, 7, T), (1, 1, 1)])
def test_agrees_with_reference(name, batch, source, target):
    """The reference computes each sentence alone and without padding."""
    model = small_model(name)
    inputs = inputs_of(model, batch, source, target)
    expected = logits_of(name, weights_of(model), model.get_config(), **inputs)
    found = np.where(inputs["target_ids"][..., None] == model.pad_id, 0, to_numpy(model(inputs)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for ids in inputs.values():
        ids[0] = model.pad_id
    assert np.isfinite(to_numpy(model(inputs))).all()


@pytest.mark.each_backend_if_slow
@on_each_backend
def test_cached_equals_full_decoding(name):
    model = small_model(name)
    source_ids, beams = inputs_of(model)["source_ids"], beams_of(model)
    assert_cached_equals_full_decoding(model, source_ids, beams)
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    assert {leaf.shape[:2] for leaf in keras.tree.flatten(cache.beam)} == {(B, N)}


@with_attention
def test_attention_of_steps_and_of_whole_targets(name):
    model, beams = small_model(name), beams_of(small_model(name))
    source_ids = inputs_of(model)["source_ids"]
    whole = to_numpy(model.source_attention(source_ids, beams))
    assert whole.shape == (B, N, T, source_ids.shape[1])
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, atol=1e-5)
    assert (whole[np.broadcast_to((source_ids == 0)[:, None, None], whole.shape)] == 0).all()
    cache = model.init_cache(source_ids, max_length=T, beam_size=N)
    for position in range(T):
        tokens = beams[:, :, position]
        _, cache, own = model.step(tokens, cache, position, return_attention_weights=True)
        np.testing.assert_allclose(to_numpy(own), whole[:, :, position], atol=1e-5)


@pytest.mark.each_backend_if_slow
@with_attention
def test_search_in_a_graph_for_all_shapes_is_the_same(name):
    """Lengths are known only at run time, as in a SavedModel. Other backends have no such graph."""
    model, options = small_model(name), SearchOptions(beam_size=2)
    assert model.accepts_any_shape
    if makes_graphs():
        source_ids = inputs_of(model)["source_ids"]
        with eagerly():
            expected = quick_search(model, source_ids, LONGEST, options)
        assert np.isfinite(expected.scores).all()
        run = compile_function(run_stages, model, any_shape=True)
        strategy = make_strategy(model, options)
        found = run(Request(source_ids), np.int32(LONGEST), strategy=strategy)
        np.testing.assert_array_equal(to_numpy(found.ids), expected.ids)
        np.testing.assert_allclose(to_numpy(found.scores), expected.scores, atol=1e-4)


@pytest.mark.each_backend_if_slow
@on_each_backend
def test_saved_is_loaded_and_trains_on(name, tmp_path):
    model = new_model(name, name="a_name")
    inputs = inputs_of(model, batch=12)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(model(inputs)))
    assert loaded.get_config() == model.get_config()
    before = [to_numpy(weight) for weight in loaded.trainable_weights]
    loaded.compile(keras.optimizers.SGD(0.05), MaskedCrossentropy())
    losses = [loaded.train_on_batch(inputs, inputs["target_ids"]) for _ in range(4)]
    assert losses[-1] < losses[0]
    for old, weight in zip(before, loaded.trainable_weights, strict=True):
        assert np.abs(to_numpy(weight) - old).max() > 1e-7, weight.path


@each_architecture
def test_the_defaults_are_the_base_preset_and_the_recipe_states_the_command(name):
    arguments = inspect.signature(ARCHITECTURES[name].__init__).parameters
    base = ARCHITECTURES[name].presets["base"]
    assert {size: arguments[size].default for size in base} == base
    assert {"tiny", "base"} == ARCHITECTURES[name].presets.keys()
    recipe = PROGRAM.parent / f"multi30k_de_en_{name}.yaml"
    assert f"python recipes/before_transformers.py train {recipe.stem}" in recipe.read_text("utf-8")
    assert load_recipe(recipe).model.architecture == name


@pytest.mark.each_backend_if_slow
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
def test_training_asks_for_no_program_that_cannot_be_compiled():
    """On TensorFlow, XLA cannot compile the gradient of the loop over target tokens."""
    model = new_model("attentional_recurrent")
    inputs = inputs_of(model)
    model.compile("sgd", MaskedCrossentropy(), jit_compile=keras.config.backend() != "torch")
    assert np.isfinite(model.train_on_batch(inputs, np.ones_like(inputs["target_ids"])))
    assert model.jit_compile == (keras.config.backend() == "jax")


def recipe_for(directory, name, **training):
    changes = {"steps": 2, "validation_bleu_sentences": 0, "accumulation_steps": 1, **training}
    sections = {"data": {"max_length": 15}, "tokenizer": {"joint": False}, "training": changes}
    sizes = {**SIZES[name], "max_length": 60}
    model = ModelSettings(architecture=name, preset="tiny", **sizes)
    return tiny_run.recipe_for(directory, **sections).model_copy(update={"model": model})


def test_gradient_checkpointing_without_effect_is_refused_before_training(tmp_path):
    tiny_run.write_text(tmp_path)
    recipe = recipe_for(tmp_path, "recurrent", gradient_checkpointing=True)
    with pytest.raises(UserError, match="`gradient_checkpointing` does not support this model"):
        train(Run.create(tmp_path / "run", recipe))


@pytest.mark.slow
@each_architecture
def test_the_program_trains_translates_and_exports(name, tmp_path):
    """The process that writes the SavedModel knows the architecture too."""
    tiny_run.write_text(tmp_path)
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(recipe_for(tmp_path, name).to_yaml())
    words = "train", recipe, "--run", run, "--backend", "torch"
    python(PROGRAM, *words, KERAS_BACKEND="jax")
    text = tmp_path / "text.en"
    translations = python(PROGRAM, "translate", run, text).stdout.splitlines()
    assert len(translations) == len(text.read_text().splitlines())
    words = "export", run, "--format", "saved_model", "--output", tmp_path / "models"
    assert "100.0% of" in python(PROGRAM, *words).stdout
    call = ("translate_nbest", {"text": ["a b", "c"]})
    (found,) = run_signatures(tmp_path / "models" / "1", [call])
    is_aligned = any(x >= 0 for row in found["alignments"] for piece in row for x in piece)
    assert is_aligned == (name != "recurrent")
