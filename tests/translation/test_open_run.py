"""Models and translators of a run, and what cannot be opened."""

import shutil
import zipfile

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import assert_same_arrays, to_numpy

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.formats.engines import open_translator
from keras_transformer.layers.base import Dense
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, ValidationHistory
from keras_transformer.runs.loading import load_checkpoint_model
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.open_run import open_model, open_shortlist


def tiny_model(size=11, **options):
    return Transformer(size, num_layers=1, d_model=6, num_heads=2, d_ff=7, **options)


def tokenizer_of(words, size, **options):
    return Tokenizer.train([(words, words)], vocabulary_size=size, **options)


@pytest.fixture
def run(tmp_path):
    recipe = Recipe.model_validate({"name": "a", "data": {"generator": {}}})
    return Run.create(tmp_path / "my run", recipe)


@pytest.fixture
def unfinished(run):
    """A run with three checkpoints of different models, but no finished model."""
    tokenizer_of("a b c d", 11).save(run.tokenizer_dir)
    losses = ValidationHistory({2: 1.0, 4: 5.0, 6: 3.0, 8: float("nan")})
    for step in (4, 6, 8):
        model = tiny_model()
        model.compile("sgd")
        save_checkpoint(run.checkpoints_dir, model, step, keep=3, history=losses)
    return run


def test_a_checkpoint_is_best_last_or_has_a_step(unfinished):
    unfinished.model_path.write_bytes(b"damaged")
    for which, step in (("best", 6), ("last", 8), (4, 4)):
        path = unfinished.checkpoint(which)
        assert path.name == f"step-0000000{step}"
        found, expected = open_model(unfinished, which), load_checkpoint_model(path)
        assert_same_arrays(found.weights, expected.weights)


def test_what_an_unfinished_run_has_is_named(unfinished):
    for use in (open_model, open_translator):
        with pytest.raises(UserError, match=r"`checkpoint`: best, last or a step \(4, 6, 8\)$"):
            use(unfinished)
    for which in (5, "worst"):
        with pytest.raises(UserError, match=f"no checkpoint {which!r}: .* checkpoints: 4, 6, 8$"):
            open_model(unfinished, which)
    with pytest.raises(UserError, match="use the engine keras. Received: checkpoint=best"):
        open_translator(unfinished, engine="ctranslate2", checkpoint="best")
    with pytest.raises(UserError, match="Received: ensemble="):
        open_translator([unfinished] * 2, engine="ctranslate2")


def test_a_run_without_checkpoints_shows_the_command_that_trains_it(run):
    command = f": keras-transformer train '{run.directory}' --resume$"
    uses = (open_model, open_translator, open_shortlist, lambda x: open_model(x, "last"))
    for use in uses:
        with pytest.raises(UserError, match=command):
            use(run)


@pytest.mark.parametrize("has_tokenizer", [True, False])  # or its fingerprint alone
def test_a_tokenizer_of_another_run_is_refused(run, has_tokenizer):
    model, tokenizer = tiny_model(16), tokenizer_of("a b c d e f g", 16)
    if has_tokenizer:
        vars(model)["tokenizer_files"] = tokenizer.files
    model.save(run.model_path)
    if not has_tokenizer:
        with zipfile.ZipFile(run.model_path, "a") as archive:
            archive.writestr(TOKENIZER_MEMBER, tokenizer.fingerprint)
    tokenizer.save(run.tokenizer_dir)
    assert open_model(run).vocabulary_size == 16
    shutil.rmtree(run.tokenizer_dir)
    tokenizer_of("h i j k l m n", 16).save(run.tokenizer_dir)
    with pytest.raises(UserError, match="has other pieces than .*model.keras was trained with"):
        open_model(run)


def test_a_tokenizer_of_another_size_is_refused(run):
    tokenizer_of("a b c d e f g", 16).save(run.tokenizer_dir)
    tiny_model().save(run.model_path)
    with pytest.raises(UserError, match=r"vocabularies of \(11, 11\) ids. Received: \(16, 16\)"):
        open_model(run)


def test_a_model_of_another_kind_is_refused(run):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(run.model_path)
    with pytest.raises(UserError, match="must contain a model that translates.*class Sequential"):
        open_model(run)


@pytest.mark.each_backend
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", *once("float16")])
def test_mixed_precision_computes_in_float32_where_that_is_faster(run, dtype):
    trained = tiny_model(dtype=dtype)
    trained.save(run.model_path)
    half = dtype.removeprefix("mixed_")
    assert open_model(run).compute_dtype == half
    model = open_model(run, for_inference=True)
    is_faster = keras.config.backend() != "torch" and dtype != "float16"
    assert model.compute_dtype == ("float32" if is_faster else half)
    assert_same_arrays(model.get_weights(), trained.get_weights())


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("change", ["int8", *once("lora", "frozen")])
def test_a_changed_model_computes_in_float32_as_its_twin_does(run, change):
    model = tiny_model(dtype="mixed_bfloat16")
    if change == "int8":
        model.quantize("int8")
    elif change == "frozen":
        model.layers[2].trainable = False
    else:
        model.enable_lora(2)
        for layer in model._flatten_layers():
            if isinstance(layer, Dense):
                layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.save(run.model_path)
    ids = {"source_ids": np.array([[4, 5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}
    twin = model if keras.config.backend() == "torch" else in_float32(model)
    loaded = open_model(run, for_inference=True)
    np.testing.assert_allclose(to_numpy(loaded(ids)), to_numpy(twin(ids)), atol=1e-5)
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
