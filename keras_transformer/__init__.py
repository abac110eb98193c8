"""The Transformer of "Attention Is All You Need" for Keras 3, on TensorFlow, JAX and PyTorch.

`import keras_transformer` imports Keras and registers the layers, models, losses, metrics and
optimizers of this package, so that `keras.saving.load_model` can load them. Other names are
imported when they are first used. Each sub-package has further names.
"""

import os
from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.errors import UserError as UserError

# The command line translates with CTranslate2 before Keras could be imported.
if TYPE_CHECKING or not os.environ.get("KERAS_TRANSFORMER_WITHOUT_KERAS"):
    from keras_transformer._backend.compile_function import compile_function as compile_function
    from keras_transformer.layers import (
        Decoder as Decoder,
        DecoderLayer as DecoderLayer,
        Encoder as Encoder,
        EncoderLayer as EncoderLayer,
        FeedForward as FeedForward,
        LearnedPositionalEncoding as LearnedPositionalEncoding,
        MultiHeadAttention as MultiHeadAttention,
        PositionalEncoding as PositionalEncoding,
        ResidualConnection as ResidualConnection,
        RotaryPositionalEncoding as RotaryPositionalEncoding,
        SinusoidalPositionalEncoding as SinusoidalPositionalEncoding,
        TokenEmbedding as TokenEmbedding,
        causal_mask as causal_mask,
        padding_mask as padding_mask,
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from keras_transformer.models import (
        BertEncoder as BertEncoder,
        LanguageModel as LanguageModel,
        MaskedLanguageModel as MaskedLanguageModel,
        Transformer as Transformer,
        merge_lora as merge_lora,
    )
    from keras_transformer.training import (
        MaskedAccuracy as MaskedAccuracy,
        MaskedCrossentropy as MaskedCrossentropy,
        Perplexity as Perplexity,
        TransformerAdam as TransformerAdam,
        TransformerSchedule as TransformerSchedule,
    )

if TYPE_CHECKING:
    from keras_transformer import (
        data as data,
        decoding as decoding,
        documents as documents,
        evaluation as evaluation,
        exchange as exchange,
        export as export,
        portability as portability,
        recipe as recipe,
        runs as runs,
        serving as serving,
        translation as translation,
        visualization as visualization,
    )
    from keras_transformer.data import (
        BatchPlan as BatchPlan,
        ParallelDataset as ParallelDataset,
        Tokenizer as Tokenizer,
        TokenStore as TokenStore,
    )
    from keras_transformer.decoding import (
        Ensemble as Ensemble,
        SamplingOptions as SamplingOptions,
        SearchOptions as SearchOptions,
        Shortlist as Shortlist,
        search as search,
    )
    from keras_transformer.portability import conformance as conformance
    from keras_transformer.recipe.files import load_recipe as load_recipe
    from keras_transformer.recipe.settings import Recipe as Recipe
    from keras_transformer.runs.run import Run as Run
    from keras_transformer.training import (
        SlicedLogitsTrainer as SlicedLogitsTrainer,
        array_batches as array_batches,
        average_checkpoints as average_checkpoints,
        fit as fit,
        train as train,
    )
    from keras_transformer.translation import (
        Generator as Generator,
        Hypothesis as Hypothesis,
        Scorer as Scorer,
        Translator as Translator,
        import_run as import_run,
        open_model as open_model,
        open_shortlist as open_shortlist,
        open_translator as open_translator,
        save_run as save_run,
    )

__version__ = "0.1.0.dev0"

__getattr__ = lazy_names(
    __name__,
    {
        "data": "BatchPlan ParallelDataset TokenStore Tokenizer",
        "decoding": "Ensemble SamplingOptions SearchOptions Shortlist search",
        "portability": "conformance",
        "recipe.files": "load_recipe",
        "recipe.settings": "Recipe",
        "runs.run": "Run",
        "training": "SlicedLogitsTrainer array_batches average_checkpoints fit train",
        "translation": """
            Generator Hypothesis Scorer Translator import_run open_model open_shortlist
            open_translator save_run""",
    },
    "data decoding documents evaluation exchange export portability recipe runs serving "
    "translation visualization",
)
