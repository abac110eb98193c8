"""The public API is a decision, not an accident."""

import inspect
import subprocess
import sys

import keras
import pytest

import keras_transformer

PUBLIC = """
    ALiBiPositionalEncoding AdditiveAttention AttentionExample AttentionMap AttentionPattern
    AttentionalGRU AttentionalRecurrentSeq2Seq BatchPlan BertEncoder BinaryPositionalEncoding Cache
    Conformance ConstraintError ConvolutionalDecoderLayer ConvolutionalEncoderLayer
    ConvolutionalSeq2Seq CorpusError
    Decoder DecoderLayer Dropout Encoder EncoderLayer Ensemble FeedForward ForbiddenWords Forecaster
    FixedAttention FullAttention Generator Hypothesis IndexPositionalEncoding LanguageModel
    LearnedPositionalEncoding LocalAttention MaskedAccuracy MaskedCrossentropy MaskedLanguageModel
    MaskedPatchModel MinLength MultiHeadAttention NoRepeatNgrams NormalizedIndexPositionalEncoding
    Perplexity PositionalEncoding Recipe RecurrentSeq2Seq RelativePositionBias RepetitionPenalty
    Request ResidualConnection RotaryPositionalEncoding Run SamplingOptions Scorer SearchOptions
    SearchResult SelfAttention Shortlist SinusoidalPositionalEncoding SkipGram SkipGramWindowModel
    SlicedLogitsTrainer SpectrogramPatches SpeechTransformer StridedAttention TimeSeriesEncoder
    TokenEmbedding TokenStore Tokenizer Transformer TransformerAdam TransformerSchedule Translator
    UserError VectorQuantizer VisionTransformer array_batches attention_maps attention_page
    attention_rollout attention_svg average_checkpoints causal_mask check_same_options
    compile_function conformance evaluation_batches fit fit_data head_entropy keep_freed_memory
    load_recipe mask_tokens open_model open_shortlist
    open_translator padding_mask random_numbers read_parallel scaled_dot_product_attention
    score_pairs search skip_gram_batches train translation_attention word_alignment
""".split()


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_only_installed_backend_is_chosen_before_keras_is_imported():
    backend = keras.config.backend()
    code = f"""
import importlib.util, os
os.environ.pop("KERAS_BACKEND"), os.environ.update(KERAS_HOME=os.devnull + "/none")
find, others = importlib.util.find_spec, {{"tensorflow", "jax", "torch"}} - {{"{backend}"}}
importlib.util.find_spec = lambda name, *rest: None if name in others else find(name, *rest)
from keras_transformer import Transformer
import keras
print(keras.config.backend())
"""
    assert run_python(code) == backend


def test_public_names_are_these():
    assert sorted(keras_transformer.__all__) == sorted(PUBLIC)
    assert all(hasattr(keras_transformer, name) for name in PUBLIC)


def test_public_names_are_documented():
    for name in PUBLIC:
        assert inspect.getdoc(getattr(keras_transformer, name)), name


def test_import_alone_does_not_load_keras_and_first_use_loads_everything():
    code = (
        "import sys, keras_transformer.cli as c, keras_transformer as k; before = 'keras' in "
        "sys.modules; k.Transformer; from keras_transformer.models import Transformer; "
        "print(before, k.Transformer is Transformer, 'Translator' in vars(k))"
    )
    assert run_python(code) == "False True True"


def test_import_after_keras_registers_the_classes_and_spares_tensorflow():
    code = (
        "import sys, keras, keras_transformer; "
        "print(keras.saving.get_registered_object('keras_transformer>Transformer').__name__, "
        "'tensorflow' in sys.modules)"
    )
    assert run_python(code) == f"Transformer {keras.backend.backend() == 'tensorflow'}"


def test_import_before_keras_registers_the_classes_too():
    code = (
        "import keras_transformer, keras; "
        "print(keras.saving.get_registered_object('keras_transformer>TransformerAdam').__name__)"
    )
    assert run_python(code) == "TransformerAdam"


@pytest.mark.parametrize("module", ["layers", "decoding.search", "training.crossentropy"])
def test_a_module_of_the_package_may_be_the_first_to_import_keras(module):
    code = f"""
import keras_transformer.data, keras_transformer.{module}
import keras
print(keras.saving.get_registered_object("keras_transformer>Transformer").__name__)
"""
    assert run_python(code) == "Transformer"


@pytest.mark.parametrize(
    "missing, failing, following",
    [
        ("sentencepiece", "keras_transformer.data.tokenizer", "keras_transformer.layers, keras"),
        ("rich", "keras", "keras"),
    ],
    ids=["of_a_module", "of_keras"],
)
def test_after_a_failed_import_the_next_one_registers_the_classes(missing, failing, following):
    code = f"""
import sys, keras_transformer
sys.modules["{missing}"] = None
try:
    import {failing}
except ImportError:
    del sys.modules["{missing}"]
import {following}
print(keras.saving.get_registered_object("keras_transformer>Transformer").__name__)
"""
    assert run_python(code) == "Transformer"


def test_the_command_line_imports_only_what_it_needs():
    code = """
import sys, keras_transformer.cli
import keras_transformer.layers
print("keras" in sys.modules, "keras_transformer.models.speech_transformer" in sys.modules)
"""
    assert run_python(code) == "True False"


def test_after_the_training_package_keras_can_load_models():
    """`keras-transformer average` imports nothing else of this package before Keras."""
    code = """
from keras_transformer.training import average_checkpoints
import keras
print(keras.saving.get_registered_object("keras_transformer>Transformer").__name__)
"""
    assert run_python(code) == "Transformer"


def test_unknown_name_is_an_attribute_error():
    assert not hasattr(keras_transformer, "Transfromer")
