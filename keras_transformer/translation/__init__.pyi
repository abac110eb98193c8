from .alignment import TokenAlignment as TokenAlignment, word_alignment as word_alignment
from .generator import Generator as Generator
from .glossary import Glossary as Glossary
from .hypothesis import Hypothesis as Hypothesis
from .markup import Segment as Segment, Span as Span
from .open_run import open_model as open_model, open_shortlist as open_shortlist
from .scoring import Scorer as Scorer, score_pairs as score_pairs
from .segments import TranslatedSegment as TranslatedSegment
from .target_constraints import ConstraintError as ConstraintError
from .translator import Translator as Translator
from .word_forms import WordForms as WordForms
