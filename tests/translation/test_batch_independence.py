"""A sentence gets the translation that it has alone, whatever is translated with it, and how.

Hypothesis (the library) chooses options, sentences, constraints and batches at random.
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from support.digits import Copier, new_translator
from support.fake_models import EOS, PrefixModel
from support.searching import eagerly

from keras_transformer import SamplingOptions, SearchOptions, Tokenizer
from keras_transformer.translation.target_constraints import ConstraintError
from keras_transformer.translation.translator import Translator

V, SEED = 13, 5


class GrowingModel(PrefixModel):
    """Has stages, and sentences that end: eos is probable."""

    def __init__(self):
        super().__init__(V)
        self.table[:, EOS] += 2
        self.max_length = 12

    def extend_cache(self, cache, max_length):
        return cache


@st.composite
def beam_options(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    size = draw(st.integers(1, 3)) * groups
    return SearchOptions(
        beam_size=size,
        num_beam_groups=groups,
        diversity_penalty=draw(st.sampled_from([0.3, 5.0])) if groups > 1 else 0.0,
        n_best=draw(st.integers(1, size)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        length_penalty_form=draw(st.sampled_from(["wu", "power"])),
        **draw(shared_options()),
    )


@st.composite
def sampling_options(draw):
    return SamplingOptions(
        num_samples=draw(st.integers(1, 3)),
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 3, V])),
        top_p=draw(st.sampled_from([0.3, 0.9, 1.0])),
        **draw(shared_options()),
    )


def shared_options():
    return st.fixed_dictionaries(
        {
            "max_length": st.none() | st.integers(1, 10),
            "min_length": st.sampled_from([1, 1, 3, 6]),
            "repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.5]),
            "no_repeat_ngram_size": st.sampled_from([0, 0, 1, 2, 3]),
        }
    ).filter(lambda found: found["min_length"] <= (found["max_length"] or 6))


@functools.cache
def tokenizer():
    return Tokenizer.train([("abc de. f", "fed. cba d")] * 9, vocabulary_size=13, model_type="bpe")


LETTERS = "abcdef"
TEXTS = st.text(alphabet=LETTERS + " .", max_size=25)
WORDS = st.lists(st.text(alphabet=LETTERS, min_size=1, max_size=2), max_size=2)


class Line(NamedTuple):
    """A sentence and its constraints."""

    sentence: str
    prefix: str
    forbidden: list[str]
    required: list[str]


def possible(line):
    """Removes constraints that are refused: blank and split sentences, contradictions."""
    if not line.sentence.strip():
        return line._replace(prefix="", required=[])
    required = line.required if len(line.sentence) < 8 else []
    text = " ".join([line.prefix, *required])
    forbidden = [word for word in line.forbidden if word not in text]
    return line._replace(required=required, forbidden=forbidden)


LINES = st.builds(Line, TEXTS, st.text(alphabet=LETTERS, max_size=2), WORDS, WORDS).map(possible)


def translated(translator, lines, constrained):
    columns = Line(*map(list, zip(*lines, strict=True)))
    names = [name for name in constrained if any(getattr(columns, name))]
    words = {"prefixes" if name == "prefix" else name: getattr(columns, name) for name in names}
    return translator.translate_nbest(columns.sentence, **words)


def as_row(hypothesis):
    return (hypothesis.text, hypothesis.ids, hypothesis.length)


def check_translations(whole, alone):
    assert len(whole) == len(alone)
    for found, expected in zip(whole, alone, strict=True):
        assert [*map(as_row, found)] == [*map(as_row, expected)]
        for name in ("score", "log_probability"):
            scores = ([getattr(x, name) for x in each] for each in (found, expected))
            np.testing.assert_allclose(*scores, atol=1e-4, rtol=1e-5)


@st.composite
def translations(draw):
    options = draw(beam_options() | sampling_options())
    fields = draw(st.sets(st.sampled_from(["prefix", "forbidden", "required"])))
    lines = draw(st.lists(LINES, min_size=1, max_size=6))
    return options, fields, lines, draw(st.sampled_from([1, 16, 64, 1024]))


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=5, **QUIET)
@given(translations())
def test_a_line_is_translated_as_it_is_alone(case):
    """The Translator groups lines into batches by length, and splits lines."""
    options, fields, lines, tokens_per_batch = case
    model = GrowingModel()
    with eagerly():
        if isinstance(options, SamplingOptions):
            in_batches = Translator(model, tokenizer(), None, "split", tokens_per_batch)
            each = Translator(model, tokenizer())
            sentences = [line.sentence for line in lines]
            whole = in_batches.sample(sentences, options, SEED)
            alone = [
                each.sample([sentence], options, SEED, index)[0]
                for index, sentence in enumerate(sentences)
            ]
        else:
            in_batches = Translator(model, tokenizer(), options, "split", tokens_per_batch)
            each = Translator(model, tokenizer(), options)
            try:
                whole = translated(in_batches, lines, fields)
            except ConstraintError as error:
                with pytest.raises(ConstraintError):
                    translated(each, [lines[error.sentence]], fields)
                assume(False)
            alone = [translated(each, [line], fields)[0] for line in lines]
    check_translations(whole, alone)


@pytest.mark.each_backend
def test_a_translator_of_a_server_compiles_all_that_it_needs_and_translates_the_same():
    model, lines = Copier(), ["1" * n for n in range(1, 31)] + ["2" * 40, ""]
    lines, options = [line + "3" for line in lines], {"beam_size": 2, "n_best": 2}
    expected = new_translator(Copier(), **options)
    prepared = new_translator(model, tokens_per_batch=128, **options)
    prepared.prepare(16, max_length=20)
    traced = len(model.shapes)
    for count in (1, 3, 16):
        for texts in (lines[:count], lines[-count:]):
            assert prepared.translate(texts) == expected.translate(texts)
            found = prepared.translate_nbest(texts, alignments=True)
            assert [x.text for x, _ in found] == texts
    is_compiled = keras.config.backend() != "torch"
    assert (len(model.shapes) == traced) == is_compiled
