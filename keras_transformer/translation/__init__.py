"""Above search and runs: strings in, strings out."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.translation.ctranslate2_translator import CTranslate2Translator
    from keras_transformer.translation.generator import Generator
    from keras_transformer.translation.hypothesis import Hypothesis, word_alignment
    from keras_transformer.translation.open_run import open_model, open_shortlist, open_translator
    from keras_transformer.translation.scoring import Scorer, score_pairs
    from keras_transformer.translation.translator import Translator

__all__ = [
    "CTranslate2Translator",
    "Generator",
    "Hypothesis",
    "Scorer",
    "Translator",
    "open_model",
    "open_shortlist",
    "open_translator",
    "score_pairs",
    "word_alignment",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ctranslate2_translator": "CTranslate2Translator",
        "generator": "Generator",
        "hypothesis": "Hypothesis word_alignment",
        "open_run": "open_model open_shortlist open_translator",
        "scoring": "Scorer score_pairs",
        "translator": "Translator",
    },
)
