"""From a trained model to translations: searches, what steers them, and the Translator."""

from keras_transformer._backend.compile_function import compile_function
from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.greedy_search import greedy_search
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.sampling import random_numbers, sample
from keras_transformer.decoding.scoring import score_pairs
from keras_transformer.decoding.search import SearchResult
from keras_transformer.decoding.token_rules import (
    ForbiddenWords,
    MinLength,
    NoRepeatNgrams,
    RepetitionPenalty,
)
from keras_transformer.decoding.translator import Translator
from keras_transformer.decoding.word_alignment import forced_attention, word_alignment

__all__ = [
    "Ensemble",
    "ForbiddenWords",
    "Hypothesis",
    "MinLength",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "SearchResult",
    "Translator",
    "beam_search",
    "compile_function",
    "forced_attention",
    "greedy_search",
    "random_numbers",
    "sample",
    "score_pairs",
    "word_alignment",
]
