"""The public API is a decision, not an accident."""

import importlib
import inspect

import pytest
from support.command_line import run_python

import keras_transformer

PUBLIC = """
    BatchPlan BertEncoder Decoder DecoderLayer
    Encoder EncoderLayer Ensemble FeedForward Generator Hypothesis LanguageModel
    LearnedPositionalEncoding MaskedAccuracy MaskedCrossentropy MaskedLanguageModel
    MultiHeadAttention ParallelDataset Perplexity PositionalEncoding Recipe ResidualConnection
    RotaryPositionalEncoding Run SamplingOptions Scorer SearchOptions Shortlist
    SinusoidalPositionalEncoding SlicedLogitsTrainer TokenEmbedding TokenStore Tokenizer Transformer
    TransformerAdam TransformerSchedule Translator UserError array_batches average_checkpoints
    causal_mask compile_function conformance fit import_run load_recipe merge_lora open_model
    open_shortlist open_translator padding_mask save_run scaled_dot_product_attention search train
""".split()
PACKAGES = (
    "data decoding documents evaluation formats layers models portability recipe runs serving "
    "training translation visualization"
).split()


def test_public_names_are_these_and_are_found_and_documented():
    imported = set(PACKAGES) - {"layers", "models", "training"}
    assert {*keras_transformer.__all__} == {*PUBLIC, *imported}
    for name in PUBLIC:
        assert inspect.getdoc(getattr(keras_transformer, name)), name
    for package in PACKAGES:
        module = getattr(keras_transformer, package)
        assert module is importlib.import_module(f"keras_transformer.{package}")
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{package}.{name}"
        with pytest.raises(AttributeError, match="Transfromer"):
            module.Transfromer  # noqa: B018


def test_the_import_loads_little_and_changes_nothing_in_the_interpreter():
    """It loads what `.keras` files can contain."""
    code = """
import os, sys, keras
def state():
    modules = [x for x in sys.modules.values() if x is None]
    return list(sys.meta_path), modules, sys.excepthook, sys.unraisablehook, dict(os.environ)
before = state()
import keras_transformer
print(state() == before)
heavy = "tensorflow pydantic sacrebleu sentencepiece yaml tensorboard".split()
print([x for x in heavy if x in sys.modules])
print(sum(name.startswith("keras_transformer") for name in sys.modules) <= 80)
"""
    assert run_python(code, KERAS_BACKEND="jax").splitlines() == ["True", "[]", "True"]


def test_after_the_import_keras_loads_a_compiled_model(tmp_path):
    model = keras_transformer.Transformer(7, num_layers=1, d_model=4, num_heads=2, d_ff=4)
    optimizer = keras_transformer.TransformerAdam(keras_transformer.TransformerSchedule(4))
    model.compile(optimizer, keras_transformer.MaskedCrossentropy())
    model.save(tmp_path / "model.keras")
    code = f"""
import keras, keras_transformer
model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
print(type(model.optimizer).__name__)
"""
    assert run_python(code, KERAS_BACKEND="jax") == "TransformerAdam"
