from .generator import Generator as Generator
from .hypothesis import (
    Hypothesis as Hypothesis,
    word_alignment as word_alignment,
)
from .open_run import (
    open_model as open_model,
    open_shortlist as open_shortlist,
)
from .scoring import (
    Scorer as Scorer,
    score_pairs as score_pairs,
)
from .target_constraints import ConstraintError as ConstraintError
from .translator import Translator as Translator
