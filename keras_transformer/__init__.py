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
    from keras_transformer.data import (
        BatchPlan,
        CorpusError,
        Tokenizer,
        TokenStore,
        evaluation_batches,
        fit_data,
        read_parallel,
    )
    from keras_transformer.decoding import (
        Ensemble,
        Hypothesis,
        SearchResult,
        Translator,
        beam_search,
        compile_function,
        greedy_search,
        sample,
        score_pairs,
        word_alignment,
    )
    from keras_transformer.errors import UserError
    from keras_transformer.layers import (
        AdditiveAttention,
        AttentionPattern,
        BinaryPositionalEncoding,
        DecoderLayer,
        Dropout,
        EncoderLayer,
        FeedForward,
        FullAttention,
        IndexPositionalEncoding,
        LearnedPositionalEncoding,
        LocalAttention,
        MultiHeadAttention,
        NormalizedIndexPositionalEncoding,
        PositionalEncoding,
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
    "AdditiveAttention",
    "AttentionPattern",
    "BatchPlan",
    "BinaryPositionalEncoding",
    "CorpusError",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "Ensemble",
    "FeedForward",
    "FullAttention",
    "Hypothesis",
    "IndexPositionalEncoding",
    "LearnedPositionalEncoding",
    "LocalAttention",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MultiHeadAttention",
    "NormalizedIndexPositionalEncoding",
    "Perplexity",
    "PositionalEncoding",
    "Recipe",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "Run",
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
    "beam_search",
    "causal_mask",
    "compile_function",
    "evaluation_batches",
    "fit",
    "fit_data",
    "greedy_search",
    "keep_freed_memory",
    "load_recipe",
    "padding_mask",
    "read_parallel",
    "sample",
    "scaled_dot_product_attention",
    "score_pairs",
    "train",
    "word_alignment",
]


def __getattr__(name: str) -> Any:
    if name not in __all__ or name in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("keras")
    return getattr(importlib.reload(sys.modules[__name__]), name)
