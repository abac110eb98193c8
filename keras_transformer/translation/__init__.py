"""Above search and runs: strings in, strings out."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.translation.ctranslate2_translator import CTranslate2Translator
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.target_constraints import ConstraintError

if TYPE_CHECKING:
    from keras_transformer.translation.alignment import TokenAlignment, word_alignment
    from keras_transformer.translation.generator import Generator
    from keras_transformer.translation.glossary import Glossary
    from keras_transformer.translation.imported_run import import_run
    from keras_transformer.translation.markup import Segment, Span
    from keras_transformer.translation.open_run import open_model, open_shortlist
    from keras_transformer.translation.saved_run import save_run
    from keras_transformer.translation.scoring import Scorer, score_pairs
    from keras_transformer.translation.segments import TranslatedSegment
    from keras_transformer.translation.translator import Translator
    from keras_transformer.translation.word_forms import WordForms

__all__ = [
    "CTranslate2Translator",
    "ConstraintError",
    "Generator",
    "Glossary",
    "Hypothesis",
    "Scorer",
    "Segment",
    "Span",
    "TokenAlignment",
    "TranslatedSegment",
    "Translator",
    "WordForms",
    "import_run",
    "open_model",
    "open_shortlist",
    "open_translator",
    "save_run",
    "score_pairs",
    "word_alignment",
]

__getattr__ = lazy_names(
    __name__,
    {
        "alignment": "TokenAlignment word_alignment",
        "generator": "Generator",
        "glossary": "Glossary",
        "imported_run": "import_run",
        "markup": "Segment Span",
        "open_run": "open_model open_shortlist",
        "saved_run": "save_run",
        "scoring": "Scorer score_pairs",
        "segments": "TranslatedSegment",
        "translator": "Translator",
        "word_forms": "WordForms",
    },
)
