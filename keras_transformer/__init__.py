"""The Transformer of "Attention Is All You Need" for Keras 3, on TensorFlow, JAX and PyTorch.

`import keras_transformer` registers all classes with Keras, so that `keras.saving.load_model` knows
them, provided that Keras was imported before. Otherwise the first use of a name imports Keras and
registers them (PEP 562): the command line, which reads recipes long before it needs a model, then
starts in a tenth of the time, and can choose how much TensorFlow says.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING or "keras" in sys.modules:
    from keras_transformer._backend.compile_function import compile_function
    from keras_transformer.data import (
        BatchPlan,
        CorpusError,
        Tokenizer,
        TokenStore,
        evaluation_batches,
        fit_data,
        read_parallel,
    )
    from keras_transformer.decoding.cache import Cache
    from keras_transformer.decoding.ensemble import Ensemble
    from keras_transformer.decoding.hypothesis import Hypothesis, word_alignment
    from keras_transformer.decoding.options import SamplingOptions, SearchOptions
    from keras_transformer.decoding.sampling import random_numbers
    from keras_transformer.decoding.scoring import Scorer, score_pairs
    from keras_transformer.decoding.search import search
    from keras_transformer.decoding.steps import Request, SearchResult
    from keras_transformer.decoding.token_rules import (
        ForbiddenWords,
        MinLength,
        NoRepeatNgrams,
        RepetitionPenalty,
    )
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.errors import UserError
    from keras_transformer.layers import (
        AdditiveAttention,
        ALiBiPositionalEncoding,
        AttentionPattern,
        BinaryPositionalEncoding,
        Decoder,
        DecoderLayer,
        Dropout,
        Encoder,
        EncoderLayer,
        FeedForward,
        FullAttention,
        IndexPositionalEncoding,
        LearnedPositionalEncoding,
        LocalAttention,
        MultiHeadAttention,
        NormalizedIndexPositionalEncoding,
        PositionalEncoding,
        RelativePositionBias,
        ResidualConnection,
        RotaryPositionalEncoding,
        SelfAttention,
        SinusoidalPositionalEncoding,
        StridedAttention,
        TokenEmbedding,
        causal_mask,
        padding_mask,
        scaled_dot_product_attention,
    )
    from keras_transformer.models import Transformer
    from keras_transformer.recipe import Recipe, load_recipe
    from keras_transformer.run import Run
    from keras_transformer.training import (
        MaskedAccuracy,
        MaskedCrossentropy,
        Perplexity,
        SlicedLogitsTrainer,
        TransformerAdam,
        TransformerSchedule,
        array_batches,
        average_checkpoints,
        keep_freed_memory,
    )
    from keras_transformer.training.fit import fit
    from keras_transformer.training.train import train

__all__ = [
    "ALiBiPositionalEncoding",
    "AdditiveAttention",
    "AttentionPattern",
    "BatchPlan",
    "BinaryPositionalEncoding",
    "Cache",
    "CorpusError",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "Ensemble",
    "FeedForward",
    "ForbiddenWords",
    "FullAttention",
    "Hypothesis",
    "IndexPositionalEncoding",
    "LearnedPositionalEncoding",
    "LocalAttention",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MinLength",
    "MultiHeadAttention",
    "NoRepeatNgrams",
    "NormalizedIndexPositionalEncoding",
    "Perplexity",
    "PositionalEncoding",
    "Recipe",
    "RelativePositionBias",
    "RepetitionPenalty",
    "Request",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "Run",
    "SamplingOptions",
    "Scorer",
    "SearchOptions",
    "SearchResult",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "SlicedLogitsTrainer",
    "StridedAttention",
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
    "evaluation_batches",
    "fit",
    "fit_data",
    "keep_freed_memory",
    "load_recipe",
    "padding_mask",
    "random_numbers",
    "read_parallel",
    "scaled_dot_product_attention",
    "score_pairs",
    "search",
    "train",
    "word_alignment",
]


def __getattr__(name: str) -> Any:
    if name not in __all__ or name in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("keras")
    return getattr(importlib.reload(sys.modules[__name__]), name)
