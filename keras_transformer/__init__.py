"""The Transformer of "Attention Is All You Need" for Keras 3, on TensorFlow, JAX and PyTorch.

After `import keras_transformer` and `import keras`, in any order, `keras.saving.load_model` can
load the classes of this package. `import keras_transformer` alone does not import Keras, so the
command line starts fast. The first use of a public name imports Keras.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_transformer._backend import use_only_backend
from keras_transformer._lazy import ImportHook

__version__ = "0.1.0.dev0"

# All public names, by module.
_PUBLIC_NAMES = {
    "_backend.compile_function": "compile_function",
    "_backend.fit_data": "fit_data",
    "_backend.process": "keep_freed_memory",
    "data": """
        BatchPlan CorpusError TokenStore Tokenizer evaluation_batches mask_tokens read_parallel
        skip_gram_batches""",
    "layers.attention.cache": "Cache",
    "decoding.ensemble": "Ensemble",
    "translation.generator": "Generator",
    "translation.hypothesis": "Hypothesis word_alignment",
    "decoding.options": "SamplingOptions SearchOptions",
    "decoding.sampling": "random_numbers",
    "translation.scoring": "Scorer score_pairs",
    "decoding.search": "search",
    "decoding.shortlist": "Shortlist",
    "decoding.steps": "Request SearchResult",
    "decoding.token_rules": "ForbiddenWords MinLength NoRepeatNgrams RepetitionPenalty",
    "translation.target_constraints": "ConstraintError",
    "translation.engines": "open_translator",
    "translation.open_run": "open_model open_shortlist",
    "translation.translator": "Translator",
    "errors": "UserError",
    "layers": """
        ALiBiPositionalEncoding AdditiveAttention AttentionPattern AttentionalGRU
        BinaryPositionalEncoding ConvolutionalDecoderLayer ConvolutionalEncoderLayer Decoder
        DecoderLayer Dropout Encoder EncoderLayer FeedForward FixedAttention FullAttention
        IndexPositionalEncoding LearnedPositionalEncoding LocalAttention MultiHeadAttention
        NormalizedIndexPositionalEncoding PositionalEncoding RelativePositionBias ResidualConnection
        RotaryPositionalEncoding SelfAttention SinusoidalPositionalEncoding SpectrogramPatches
        StridedAttention TokenEmbedding VectorQuantizer causal_mask padding_mask
        scaled_dot_product_attention""",
    "models": """
        AttentionalRecurrentSeq2Seq BertEncoder ConvolutionalSeq2Seq Forecaster LanguageModel
        MaskedLanguageModel MaskedPatchModel RecurrentSeq2Seq SkipGram SkipGramWindowModel
        SpeechTransformer TimeSeriesEncoder Transformer VisionTransformer""",
    "portability": "Conformance conformance",
    "recipe.files": "load_recipe",
    "recipe.settings": "Recipe",
    "runs.run": "Run",
    "training": """
        MaskedAccuracy MaskedCrossentropy Perplexity SlicedLogitsTrainer TransformerAdam
        TransformerSchedule array_batches average_checkpoints check_same_options fit train""",
    "visualization.attention_example": "AttentionExample translation_attention",
    "visualization.attention_weights": "AttentionMap attention_maps attention_rollout head_entropy",
    "visualization.attention_html": "attention_page",
    "visualization.attention_picture": "attention_svg",
}
__all__ = sorted(name for names in _PUBLIC_NAMES.values() for name in names.split())


def _import_all() -> None:
    for module, names in _PUBLIC_NAMES.items():
        imported = importlib.import_module(f"{__name__}.{module}")
        globals().update({name: getattr(imported, name) for name in names.split()})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _import_all()
    return globals()[name]


@contextmanager
def _import_of_keras() -> Iterator[None]:
    """Chooses the backend for an import of Keras, and registers this package's classes after it.

    A module of this package that imports Keras is still incomplete, so nothing is registered then.
    """
    use_only_backend()
    yield
    if _own_modules in sys.meta_path:
        sys.meta_path.remove(_own_modules)
        _import_all()


@contextmanager
def _import_of_own_module() -> Iterator[None]:
    """Registers this package's classes after an import of one of its modules that imports Keras.

    The command line does not need this, and spares the time.
    """
    yield
    if "keras" not in sys.modules:
        sys.meta_path.insert(0, _own_modules)
    elif f"{__name__}.cli" not in sys.modules:
        _import_all()


_own_modules = ImportHook(f"{__name__}.", _import_of_own_module)
if "keras" in sys.modules:
    _import_all()
else:
    sys.meta_path[:0] = [_own_modules, ImportHook("keras", _import_of_keras)]
