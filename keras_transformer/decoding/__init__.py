"""Search over token ids: beam search, sampling, and rules for hypotheses."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.decoding.ensemble import Ensemble
    from keras_transformer.decoding.options import SamplingOptions, SearchOptions
    from keras_transformer.decoding.sampling import random_numbers
    from keras_transformer.decoding.shortlist import Shortlist
    from keras_transformer.decoding.steps import Request, SearchResult
    from keras_transformer.decoding.target_constraints import ConstraintError
    from keras_transformer.decoding.token_rules import (
        ForbiddenWords,
        MinLength,
        NoRepeatNgrams,
        RepetitionPenalty,
    )

__all__ = [
    "ConstraintError",
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
]

__getattr__ = lazy_names(
    __name__,
    {
        "ensemble": "Ensemble",
        "options": "SamplingOptions SearchOptions",
        "sampling": "random_numbers",
        "shortlist": "Shortlist",
        "steps": "Request SearchResult",
        "target_constraints": "ConstraintError",
        "token_rules": "ForbiddenWords MinLength NoRepeatNgrams RepetitionPenalty",
    },
)
