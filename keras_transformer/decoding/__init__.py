"""Search over token ids: beam search, sampling, and rules for hypotheses."""

from keras_transformer.decoding.decoding_loop import search
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.decoding.steps import Request, SearchResult
from keras_transformer.decoding.token_rules import (
    ForbiddenWords,
    MinLength,
    NoRepeatNgrams,
    RepetitionPenalty,
)

__all__ = [
    "Ensemble",
    "ForbiddenWords",
    "MinLength",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "Request",
    "SamplingOptions",
    "SearchOptions",
    "SearchResult",
    "Shortlist",
    "random_numbers",
    "search",
]
