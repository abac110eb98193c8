"""From a trained model to translations: greedy search, beam search and the Translator."""

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.compiled import compile_function
from keras_transformer.decoding.greedy_search import greedy_search
from keras_transformer.decoding.search import SearchResult
from keras_transformer.decoding.translator import Hypothesis, Translator

__all__ = [
    "Hypothesis",
    "SearchResult",
    "Translator",
    "beam_search",
    "compile_function",
    "greedy_search",
]
