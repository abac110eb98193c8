"""A sentence gets the result that it has alone, whatever is searched with it, and how.

Hypothesis (the library) chooses models, options, sentences, constraints and batches at random.
"""

import functools
import os
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from support.fake_models import EOS, PAD, PrefixModel
from support.recurrent_model import RecurrentModel
from support.searching import eagerly, quick_search
from support.small_models import new_model

from keras_transformer import Ensemble, SamplingOptions, SearchOptions, Tokenizer
from keras_transformer.decoding import Request
from keras_transformer.decoding.batch_search import BatchSearch
from keras_transformer.decoding.buckets import MANY_SHAPES
from keras_transformer.decoding.decoding_loop import make_strategy
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.translation.target_constraints import ConstraintError
from keras_transformer.translation.translator import Translator

V, SEED = 13, 5
LENGTHS = st.integers(1, 10)
EXAMPLES = int(os.environ.get("KERAS_TRANSFORMER_EXAMPLES", "1500"))  # of the slow profile


class GrowingModel(PrefixModel):
    """Has stages, and sentences that end: eos is probable."""

    def __init__(self):
        super().__init__(V)
        self.table[:, EOS] += 2

    def extend_cache(self, cache, max_length):
        return cache


@functools.cache
def model_named(name):
    if name == "prefix":
        return GrowingModel()
    if name == "recurrent":
        return RecurrentModel(V)
    if name == "ensemble":
        return Ensemble([GrowingModel(), PrefixModel(V)])
    return new_model(name)


FAKE = ("prefix", "prefix", "ensemble")
REAL = ("recurrent", "sinusoidal", "rotary", "local_attention", "strided_attention")


class Sentence(NamedTuple):
    """What is asked of one sentence."""

    source: list[int]
    max_length: int
    prefix: list[int]
    forbidden: list[list[int]]
    required: list[list[int]]
    beam_size: int
    length_penalty: float
    shortlist: list[int]
    index: int  # decides its random numbers


class Case(NamedTuple):
    model: str
    options: object
    sentences: list[Sentence]
    fields: frozenset[str]  # of the request


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
        coverage_penalty=draw(st.sampled_from([0.0, 0.0, 0.2, 2.0])),
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
            "max_length": st.none() | LENGTHS,
            "min_length": st.sampled_from([1, 1, 3, 6]),
            "repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.5]),
            "no_repeat_ngram_size": st.sampled_from([0, 0, 1, 2, 3]),
        }
    ).filter(lambda found: found["min_length"] <= (found["max_length"] or 6))


TOKENS = st.integers(EOS + 1, V - 1)


def words(count, width):
    return st.lists(st.lists(TOKENS, min_size=1, max_size=width), max_size=count)


SENTENCES = st.builds(
    Sentence,
    source=st.lists(TOKENS, max_size=9).map(lambda ids: [*ids, EOS]),
    max_length=LENGTHS,
    prefix=st.lists(TOKENS, max_size=3),
    forbidden=words(3, 3),
    required=words(2, 3),
    beam_size=st.integers(1, 9),
    length_penalty=st.floats(0, 3, width=32),
    shortlist=st.lists(TOKENS, min_size=1, max_size=6),
    index=st.integers(0, 2**40),
)


@st.composite
def cases(draw, names, most):
    name = draw(st.sampled_from(names))
    options = draw(st.one_of(beam_options(), beam_options(), sampling_options()))
    fields = {"prefix_ids", "forbidden_ids"} | ({"shortlist"} if name != "recurrent" else set())
    if isinstance(options, SearchOptions):
        if name not in ("recurrent", "sinusoidal", "rotary") and options.coverage_penalty:
            options = options.replace(coverage_penalty=0.0)
        fields |= {"length_penalties", "required_ids"}
        if options.num_beam_groups == 1:
            fields |= {"beam_sizes"}
    fields = draw(st.sets(st.sampled_from(sorted(fields))))
    if {"required_ids", "beam_sizes"} <= fields:
        fields -= {"beam_sizes"}
    sentences = draw(st.lists(SENTENCES, min_size=1, max_size=most))
    return Case(name, options, sentences, frozenset(fields))


def padded(rows):
    width = max(map(len, rows))
    return np.array([[*row, *[PAD] * (width - len(row))] for row in rows], "int32")


def padded_words(rows):
    count, width = max(map(len, rows)), max([len(ids) for row in rows for ids in row], default=0)
    array = np.full((len(rows), count, width), PAD, "int32")
    for row, sequences in enumerate(rows):
        for column, ids in enumerate(sequences):
            array[row, column, : len(ids)] = ids
    return array


def request_of(case, sentences, max_length):
    """The request of some sentences, no larger than they need."""
    columns = Sentence(*zip(*sentences, strict=True))
    arrays = {
        "prefix_ids": padded(columns.prefix),
        "forbidden_ids": padded_words(columns.forbidden),
        "required_ids": padded_words(columns.required),
        "beam_sizes": np.minimum(columns.beam_size, getattr(case.options, "beam_size", 1)),
        "length_penalties": np.array(columns.length_penalty, "float32"),
        "shortlist": padded(columns.shortlist),
    }
    arrays = {name: array for name, array in arrays.items() if name in case.fields and array.size}
    if isinstance(case.options, SamplingOptions):
        size = case.options.num_samples
        arrays["random_numbers"] = random_numbers(SEED, columns.index, size, max_length)
    return Request(padded(columns.source), np.array(columns.max_length), **arrays)


def hypotheses(result, row):
    """(ids, score, log-probability) of each hypothesis."""
    columns = (result.ids[row], result.lengths[row], result.scores[row])
    return [
        (ids[:length].tolist(), score, log_probability)
        for ids, length, score, log_probability in zip(
            *columns, result.log_probabilities[row], strict=True
        )
    ]


def assert_same(found, alone):
    assert [ids for ids, *_ in found] == [ids for ids, *_ in alone]
    for column in (1, 2):
        np.testing.assert_allclose(
            [x[column] for x in found], [x[column] for x in alone], atol=1e-4, rtol=1e-5
        )


def check(case):
    """Searches the batch at once and in stages, and each sentence alone."""
    model, strategy = model_named(case.model), make_strategy(model_named(case.model), case.options)
    longest = max(sentence.max_length for sentence in case.sentences)
    whole = request_of(case, case.sentences, longest)
    event(type(case.options).__name__)
    with eagerly():
        kinds = [quick_search(model, whole, longest, case.options)]
        kinds.append(BatchSearch(model)(whole, strategy, longest, MANY_SHAPES))
        for row, sentence in enumerate(case.sentences):
            own = request_of(case, [sentence], sentence.max_length)
            alone = quick_search(model, own, sentence.max_length, case.options)
            assert not np.isnan(alone.scores).any()
            for found in kinds:
                assert_same(hypotheses(found, row), hypotheses(alone, 0))


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@pytest.mark.slow
@settings(max_examples=5, **QUIET)
@given(cases(FAKE, 4))
def test_result_is_that_of_the_sentence_alone(case):
    check(case)


@settings(max_examples=3, **QUIET)
@given(cases(REAL, 3))
def test_result_of_a_keras_model_is_that_of_the_sentence_alone(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, **{**QUIET, "derandomize": False})
@given(cases(FAKE, 18))
def test_many_results_are_those_of_the_sentences_alone(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 10, **{**QUIET, "derandomize": False})
@given(cases(REAL, 5))
def test_many_results_of_keras_models_are_those_of_the_sentences_alone(case):
    check(case)


@functools.cache
def tokenizer():
    return Tokenizer.train([("abc de. f", "fed. cba d")] * 9, vocabulary_size=13, model_type="bpe")


@functools.cache
def short_model(kind):
    model = kind(V) if kind is RecurrentModel else kind()
    model.max_length = 12
    return model


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


def translated(translator, lines, constrained, align):
    columns = Line(*map(list, zip(*lines, strict=True)))
    names = [name for name in constrained if any(getattr(columns, name))]
    words = {"prefixes" if name == "prefix" else name: getattr(columns, name) for name in names}
    return translator.translate_nbest(columns.sentence, **words, alignments=align)


def as_row(hypothesis):
    return (hypothesis.text, hypothesis.ids, hypothesis.length, hypothesis.alignment)


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
    kind = draw(st.sampled_from([GrowingModel, RecurrentModel]))
    if kind is GrowingModel and isinstance(options, SearchOptions):
        options = options.replace(coverage_penalty=0.0)
    fields = draw(st.sets(st.sampled_from(["prefix", "forbidden", "required"])))
    lines = draw(st.lists(LINES, min_size=1, max_size=6))
    return kind, options, fields, lines, draw(st.sampled_from([1, 16, 64, 1024]))


def check_translator(case):
    """The Translator groups lines into batches by length, and splits lines."""
    kind, options, fields, lines, tokens_per_batch = case
    model = short_model(kind)
    with eagerly():
        if isinstance(options, SamplingOptions):
            translators = [Translator(model, tokenizer(), None, "split", tokens_per_batch)]
            translators.append(Translator(model, tokenizer()))
            sentences = [line.sentence for line in lines]
            whole = translators[0].sample(sentences, options, SEED)
            alone = [
                translators[1].sample([sentence], options, SEED, index)[0]
                for index, sentence in enumerate(sentences)
            ]
        else:
            translators = [Translator(model, tokenizer(), options, "split", tokens_per_batch)]
            translators.append(Translator(model, tokenizer(), options))
            align = kind is RecurrentModel
            try:
                whole = translated(translators[0], lines, fields, align)
            except ConstraintError as error:
                with pytest.raises(ConstraintError):
                    translated(translators[1], [lines[error.sentence]], fields, align)
                assume(False)
            alone = [translated(translators[1], [line], fields, align)[0] for line in lines]
    check_translations(whole, alone)


@settings(max_examples=5, **QUIET)
@given(translations())
def test_a_line_is_translated_as_it_is_alone(case):
    check_translator(case)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 3, **{**QUIET, "derandomize": False})
@given(translations())
def test_many_lines_are_translated_as_they_are_alone(case):
    check_translator(case)
