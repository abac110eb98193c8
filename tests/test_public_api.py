"""The public API is a decision, not an accident."""

import importlib
import inspect
import subprocess
import sys

import keras
import pytest

import keras_transformer

PUBLIC = """
    BatchPlan BertEncoder Decoder DecoderLayer
    Encoder EncoderLayer Ensemble FeedForward Generator Hypothesis LanguageModel
    LearnedPositionalEncoding MaskedAccuracy MaskedCrossentropy MaskedLanguageModel
    MultiHeadAttention Perplexity PositionalEncoding Recipe ResidualConnection
    RotaryPositionalEncoding Run SamplingOptions Scorer SearchOptions Shortlist
    SinusoidalPositionalEncoding SlicedLogitsTrainer TokenEmbedding TokenStore Tokenizer Transformer
    TransformerAdam TransformerSchedule Translator UserError array_batches average_checkpoints
    causal_mask compile_function conformance fit load_recipe open_model open_shortlist
    open_translator padding_mask scaled_dot_product_attention search train
""".split()
PACKAGES = (
    "data decoding evaluation exchange export layers models portability recipe runs serving "
    "training translation visualization"
).split()


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.once
def test_public_names_are_these():
    assert sorted(keras_transformer.__all__) == sorted(PUBLIC)


@pytest.mark.once
def test_public_names_are_found_and_documented():
    for name in PUBLIC:
        assert inspect.getdoc(getattr(keras_transformer, name)), name
    for package in PACKAGES:
        module = getattr(keras_transformer, package)
        assert module is importlib.import_module(f"keras_transformer.{package}")
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{package}.{name}"


@pytest.mark.once
def test_the_import_loads_what_keras_files_contain_and_little_else():
    """PyTorch itself imports tqdm."""
    code = """
import sys, keras_transformer
print([x for x in "pydantic sacrebleu sentencepiece yaml tensorboard".split() if x in sys.modules])
print(sum(name.startswith("keras_transformer") for name in sys.modules) <= 80)
"""
    assert run_python(code).splitlines() == ["[]", "True"]


@pytest.mark.once
@pytest.mark.parametrize(
    "imports", ["keras_transformer, keras", "keras, keras_transformer", "keras_transformer.layers"]
)
def test_after_the_import_keras_loads_a_compiled_model(imports, tmp_path):
    model = keras_transformer.Transformer(7, num_layers=1, d_model=4, num_heads=2, d_ff=4)
    optimizer = keras_transformer.TransformerAdam(keras_transformer.TransformerSchedule(4))
    model.compile(optimizer, keras_transformer.MaskedCrossentropy())
    model.save(tmp_path / "model.keras")
    code = f"""
import sys, {imports}
import keras
model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
print(type(model.optimizer).__name__)
"""
    assert run_python(code) == "TransformerAdam"


def test_the_import_spares_tensorflow():
    found = run_python("import sys, keras_transformer; print('tensorflow' in sys.modules)")
    assert found == str(keras.config.backend() == "tensorflow")


@pytest.mark.once
def test_the_import_changes_nothing_in_the_interpreter():
    code = """
import os, sys, keras
def state():
    modules = [x for x in sys.modules.values() if x is None]
    return list(sys.meta_path), modules, sys.excepthook, sys.unraisablehook, dict(os.environ)
before = state()
import keras_transformer
print(state() == before)
"""
    assert run_python(code) == "True"
