"""Above search and runs: strings in, strings out."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.translation.hypothesis import Hypothesis, word_alignment
from keras_transformer.translation.target_constraints import ConstraintError

if TYPE_CHECKING:
    from keras_transformer.translation.generator import Generator
    from keras_transformer.translation.open_run import open_model, open_shortlist
    from keras_transformer.translation.scoring import Scorer, score_pairs
    from keras_transformer.translation.translator import Translator

__all__ = [
    "ConstraintError",
    "Generator",
    "Hypothesis",
    "Scorer",
    "Translator",
    "open_model",
    "open_shortlist",
    "score_pairs",
    "word_alignment",
]

__getattr__ = lazy_names(
    __name__,
    {
        "generator": "Generator",
        "open_run": "open_model open_shortlist",
        "scoring": "Scorer score_pairs",
        "translator": "Translator",
    },
)
