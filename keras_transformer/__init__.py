"""The Transformer of "Attention Is All You Need" for Keras 3, on TensorFlow, JAX and PyTorch.

`import keras_transformer` imports Keras and registers the layers, models, losses, metrics and
optimizers of this package, so that `keras.saving.load_model` can load them. Other names are
imported when they are first used. Each sub-package has further names.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_transformer._backend.compile_function import compile_function
from keras_transformer._lazy import lazy_names
from keras_transformer.errors import UserError
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    PositionalEncoding,
    ResidualConnection,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.models import (
    BertEncoder,
    LanguageModel,
    MaskedLanguageModel,
    Transformer,
)
from keras_transformer.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    TransformerAdam,
    TransformerSchedule,
)

if TYPE_CHECKING:
    from keras_transformer import (
        data as data,
    )
    from keras_transformer import (
        decoding as decoding,
    )
    from keras_transformer import (
        evaluation as evaluation,
    )
    from keras_transformer import (
        exchange as exchange,
    )
    from keras_transformer import (
        export as export,
    )
    from keras_transformer import (
        portability as portability,
    )
    from keras_transformer import (
        recipe as recipe,
    )
    from keras_transformer import (
        runs as runs,
    )
    from keras_transformer import (
        serving as serving,
    )
    from keras_transformer import (
        translation as translation,
    )
    from keras_transformer import (
        visualization as visualization,
    )
    from keras_transformer.data import BatchPlan, Tokenizer, TokenStore
    from keras_transformer.decoding import (
        Ensemble,
        SamplingOptions,
        SearchOptions,
        Shortlist,
        search,
    )
    from keras_transformer.portability import conformance
    from keras_transformer.recipe.files import load_recipe
    from keras_transformer.recipe.settings import Recipe
    from keras_transformer.runs.run import Run
    from keras_transformer.training import (
        SlicedLogitsTrainer,
        array_batches,
        average_checkpoints,
        fit,
        train,
    )
    from keras_transformer.translation import (
        Generator,
        Hypothesis,
        Scorer,
        Translator,
        open_model,
        open_shortlist,
        open_translator,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "BatchPlan",
    "BertEncoder",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "Ensemble",
    "FeedForward",
    "Generator",
    "Hypothesis",
    "LanguageModel",
    "LearnedPositionalEncoding",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MaskedLanguageModel",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEncoding",
    "Recipe",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "Run",
    "SamplingOptions",
    "Scorer",
    "SearchOptions",
    "Shortlist",
    "SinusoidalPositionalEncoding",
    "SlicedLogitsTrainer",
    "TokenEmbedding",
    "TokenStore",
    "Tokenizer",
    "Transformer",
    "TransformerAdam",
    "TransformerSchedule",
    "Translator",
    "UserError",
    "array_batches",
    "average_checkpoints",
    "causal_mask",
    "compile_function",
    "conformance",
    "fit",
    "load_recipe",
    "open_model",
    "open_shortlist",
    "open_translator",
    "padding_mask",
    "scaled_dot_product_attention",
    "search",
    "train",
]

_PACKAGES = {
    *("data", "decoding", "evaluation", "exchange", "export", "portability", "recipe", "runs"),
    *("serving", "translation", "visualization"),
}
_public_name = lazy_names(
    __name__,
    {
        "data": "BatchPlan TokenStore Tokenizer",
        "decoding": "Ensemble SamplingOptions SearchOptions Shortlist search",
        "portability": "conformance",
        "recipe.files": "load_recipe",
        "recipe.settings": "Recipe",
        "runs.run": "Run",
        "training": "SlicedLogitsTrainer array_batches average_checkpoints fit train",
        "translation": """
            Generator Hypothesis Scorer Translator open_model open_shortlist open_translator""",
    },
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    return _public_name(name)
