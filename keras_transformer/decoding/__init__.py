"""Search over token ids: beam search, sampling, and rules for hypotheses."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.decoding.options import SamplingOptions, SearchOptions

if TYPE_CHECKING:
    from keras_transformer.decoding.decoding_loop import search
    from keras_transformer.decoding.ensemble import Ensemble
    from keras_transformer.decoding.request import Request, SearchResult
    from keras_transformer.decoding.sampling import random_numbers
    from keras_transformer.decoding.shortlist import Shortlist
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

__getattr__ = lazy_names(
    __name__,
    {
        "decoding_loop": "search",
        "ensemble": "Ensemble",
        "request": "Request SearchResult",
        "sampling": "random_numbers",
        "shortlist": "Shortlist",
        "token_rules": "ForbiddenWords MinLength NoRepeatNgrams RepetitionPenalty",
    },
)
