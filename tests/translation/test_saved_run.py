"""Runs of models that were trained in Python, with and without LoRA."""

import keras
import numpy as np
import pytest
from support.command_line import succeeds
from support.contract import randomize

from keras_transformer import (
    ParallelDataset,
    Run,
    SearchOptions,
    SlicedLogitsTrainer,
    Tokenizer,
    Transformer,
    Translator,
    UserError,
    merge_lora,
    open_model,
    open_translator,
    save_run,
)
from keras_transformer.models import LanguageModel

PAIRS = [("abc de. f", "fed. cba d"), ("de abc", "cba de")] * 9
SENTENCES = ["abc de", "f. de abc", "a b c"]
IDS = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(PAIRS, vocabulary_size=16, model_type="bpe")


def new_model(vocabulary_size=16, **settings):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11, "max_length": 24}
    return Transformer(vocabulary_size, **{**sizes, **settings})


def adapted_model(**settings):
    """A model with adapters that change what it computes."""
    model = new_model(**settings)
    model.encoder.trainable = False
    model.decoder.enable_lora(rank=2, lora_alpha=3)
    randomize(model)
    return model


def logits(model):
    return keras.ops.convert_to_numpy(model(IDS))


@pytest.mark.parametrize("settings", [{}, {"norm_first": True, "num_layers": 2}])
def test_merged_adapters_compute_the_same_and_all_layers_train(settings):
    model = adapted_model(**settings)
    before = logits(model)
    merged = merge_lora(model)
    np.testing.assert_allclose(logits(merged), before, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(logits(model), before)
    assert not any("lora" in weight.path for weight in merged.weights)
    assert merged.count_params() == new_model(**settings).count_params()
    assert merged.decoder.trainable_weights and not merged.encoder.trainable_weights


def test_adapters_of_layers_of_keras_are_merged():
    inputs = keras.Input((3,), dtype="int32")
    layers = keras.layers.Embedding(7, 4), keras.layers.Dense(5)
    model = keras.Model(inputs, layers[1](layers[0](inputs)))
    for layer in layers:
        layer.enable_lora(2)
    randomize(model)
    merged = merge_lora(model)
    ids = np.array([[1, 2, 6]])
    np.testing.assert_allclose(merged.predict(ids), model.predict(ids), rtol=0, atol=1e-6)
    assert len(merged.weights) == 3


def test_a_quantized_model_is_not_merged():
    model = adapted_model()
    model.quantize("int8")
    with pytest.raises(ValueError, match="Merge LoRA before `quantize`"):
        merge_lora(model)


@pytest.mark.parametrize("kind", ["fitted", "trainer", "adapted", "float16", "mixed_bfloat16"])
def test_a_saved_run_translates_as_its_model(tokenizer, tmp_path, kind):
    dtype = kind if "16" in kind else "float32"
    model = adapted_model() if kind == "adapted" else new_model(dtype=dtype)
    given = SlicedLogitsTrainer(model) if kind == "trainer" else model
    if kind == "fitted":
        model.compile("adam")
        model.fit(ParallelDataset(PAIRS, tokenizer), verbose=0)
    options, languages = SearchOptions(beam_size=3), {"source_language": "en"}
    languages |= {"target_language": "de"}
    of_fit = None if kind == "fitted" else tokenizer
    run = save_run(tmp_path / "my run", given, of_fit, options=options, **languages)
    opened = Run.open(run.directory)
    assert opened.recipe == run.recipe and opened.recipe.name == "my_run"
    assert opened.recipe.evaluation.beam_size == 3
    loaded = open_model(opened)
    assert loaded.dtype_policy.name == "float32"
    tolerance = 1e-6 if model.dtype_policy.name == "float32" else 0.1  # bfloat16 has 8 bits
    np.testing.assert_allclose(logits(loaded), logits(model), rtol=0, atol=tolerance)
    if tolerance < 0.05:
        expected = Translator(model, tokenizer, options).translate(SENTENCES)
        assert open_translator(opened).translate(SENTENCES) == expected


@pytest.mark.once
def test_every_command_takes_a_saved_run(tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    run = save_run(tmp_path / "mine", adapted_model(), tokenizer).directory
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("".join(f"{line}\n" for line in SENTENCES))
    target.write_text("".join(f"{line}\n" for line in SENTENCES))
    assert len(succeeds("translate", run, source).splitlines()) == 3
    assert "BLEU" in succeeds("evaluate", run, "--files", source, target)
    assert "perplexity" in succeeds("score", run, source, target, "--summary")
    for format in ("ctranslate2", "run"):
        succeeds("export", run, "--format", format, "--output", tmp_path / format)
    assert "Trained in Python" in succeeds("info", run)
    succeeds("report", run, "--output", tmp_path / "report.html")
    succeeds("attention", run, "abc", "--output", tmp_path / "attention.html")


@pytest.mark.once
def test_what_no_command_could_open_is_refused(tokenizer, tmp_path):
    quantized, language = new_model(), LanguageModel(16, num_layers=1, d_model=8, num_heads=2)
    quantized.quantize("int8")
    refused = [
        (quantized, tokenizer, {}, ValueError, "must not be quantized"),
        (language, tokenizer, {}, ValueError, "needs a sequence-to-sequence model"),
        (new_model(17), tokenizer, {}, ValueError, "are .17, 17, 0. in the model"),
        (new_model(15), tokenizer, {}, ValueError, "more source tokens than the model"),
        (new_model(), None, {}, UserError, "The model has no tokenizer"),
        (new_model(), tokenizer, {"source_language": "Klingon!"}, UserError, "source_language"),
    ]
    for model, given, languages, error, message in refused:
        with pytest.raises(error, match=message):
            save_run(tmp_path / "run", model, given, **languages)
        assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        save_run(tmp_path, new_model(), tokenizer)
