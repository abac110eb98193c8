"""The functional models. A model is imported on first use, so reading a recipe needs no Keras."""

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from keras_transformer.models.attentional_recurrent import AttentionalRecurrentSeq2Seq
    from keras_transformer.models.convolutional import ConvolutionalSeq2Seq
    from keras_transformer.models.language_model import LanguageModel
    from keras_transformer.models.masked_language_model import BertEncoder, MaskedLanguageModel
    from keras_transformer.models.recurrent import RecurrentSeq2Seq
    from keras_transformer.models.skip_gram import SkipGram
    from keras_transformer.models.speech_transformer import SpeechTransformer
    from keras_transformer.models.time_series import (
        Forecaster,
        MaskedPatchModel,
        SkipGramWindowModel,
        TimeSeriesEncoder,
    )
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.models.vision_transformer import VisionTransformer

__all__ = [
    "ARCHITECTURES",
    "AttentionalRecurrentSeq2Seq",
    "BertEncoder",
    "ConvolutionalSeq2Seq",
    "Forecaster",
    "LanguageModel",
    "MaskedLanguageModel",
    "MaskedPatchModel",
    "RecurrentSeq2Seq",
    "SkipGram",
    "SkipGramWindowModel",
    "SpeechTransformer",
    "TimeSeriesEncoder",
    "Transformer",
    "VisionTransformer",
    "architecture",
]


class Architecture(NamedTuple):
    """A kind of model that a recipe can describe.

    Attributes:
        class_name: Name of the model class.
        settings: Constructor arguments that the section `model` of a recipe can set.
        presets: Sizes of published models, by the name of the preset.
    """

    class_name: str
    settings: frozenset[str]
    presets: dict[str, dict[str, Any]]


_COMMON = frozenset({"d_model", "dropout_rate", "max_length"})

# Maps each value of a recipe's `model.architecture`, a module of this package, to its description.
ARCHITECTURES = {
    "transformer": Architecture(
        "Transformer",
        _COMMON
        | {"num_layers", "num_decoder_layers", "num_heads", "d_ff", "attention_dropout_rate"}
        | {"d_k", "use_scale", "position_encoding", "activation", "norm_first", "norm_epsilon"}
        | {"normalization"}
        | {"attention_pattern", "attention_window"},
        {
            # Wu et al. 2021: text-only Multi30k, 2.57M parameters with 9,728 joint tokens.
            "tiny": {
                "num_layers": 4,
                "d_model": 128,
                "num_heads": 4,
                "d_ff": 256,
                "dropout_rate": 0.3,
            },
            # Vaswani et al. 2017, Table 3.
            "base": {
                "num_layers": 6,
                "d_model": 512,
                "num_heads": 8,
                "d_ff": 2048,
                "dropout_rate": 0.1,
            },
            "big": {
                "num_layers": 6,
                "d_model": 1024,
                "num_heads": 16,
                "d_ff": 4096,
                "dropout_rate": 0.3,
            },
        },
    ),
    "recurrent": Architecture(
        "RecurrentSeq2Seq",
        _COMMON | {"num_layers", "d_embedding"},
        {
            "tiny": {"num_layers": 2, "d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
            # Sutskever et al. 2014, §3.4.
            "base": {"num_layers": 4, "d_model": 1000, "d_embedding": 1000, "dropout_rate": 0.0},
        },
    ),
    "attentional_recurrent": Architecture(
        "AttentionalRecurrentSeq2Seq",
        _COMMON | {"d_embedding"},
        {
            "tiny": {"d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
            # Bahdanau et al. 2015, appendix A.2.3: RNNsearch.
            "base": {"d_model": 1000, "d_embedding": 620, "dropout_rate": 0.0},
        },
    ),
    "convolutional": Architecture(
        "ConvolutionalSeq2Seq",
        _COMMON | {"num_layers", "num_decoder_layers", "d_embedding", "kernel_size"},
        {
            "tiny": {"num_layers": 4, "d_model": 256, "d_embedding": 256, "dropout_rate": 0.2},
            # Gehring et al. 2017, §4.2: WMT16 English-Romanian.
            "base": {"num_layers": 20, "d_model": 512, "d_embedding": 512, "dropout_rate": 0.2},
        },
    ),
}

# Maps the names of all model classes to the modules of this package that define them.
_CLASSES = {
    **{class_name: module for module, (class_name, *_) in ARCHITECTURES.items()},
    "BertEncoder": "masked_language_model",
    "Forecaster": "time_series",
    "LanguageModel": "language_model",
    "MaskedLanguageModel": "masked_language_model",
    "MaskedPatchModel": "time_series",
    "SkipGram": "skip_gram",
    "SkipGramWindowModel": "time_series",
    "SpeechTransformer": "speech_transformer",
    "TimeSeriesEncoder": "time_series",
    "VisionTransformer": "vision_transformer",
}


def architecture(name: str) -> Any:
    """Returns the model class for `name`, a value of a recipe's `model.architecture`."""
    return __getattr__(ARCHITECTURES[name].class_name)


def register_models() -> None:
    """Imports all model classes, so that `keras.saving.load_model` can load them."""
    for class_name in _CLASSES:
        __getattr__(class_name)


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"keras_transformer.models.{_CLASSES[name]}")
    return getattr(module, name)
