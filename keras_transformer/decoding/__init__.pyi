from .decoding_loop import search as search
from .ensemble import Ensemble as Ensemble
from .options import (
    SamplingOptions as SamplingOptions,
    SearchOptions as SearchOptions,
)
from .request import (
    Request as Request,
    SearchResult as SearchResult,
)
from .sampling import random_numbers as random_numbers
from .shortlist import Shortlist as Shortlist
from .token_rules import (
    ForbiddenWords as ForbiddenWords,
    MinLength as MinLength,
    NoRepeatNgrams as NoRepeatNgrams,
    RepetitionPenalty as RepetitionPenalty,
)
