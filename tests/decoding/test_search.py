"""Stages and shrinking batches change nothing but the time."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.fake_models import PrefixModel
from support.searching import beam_search, eagerly, quick_search
from support.small_models import new_model, small_model

from keras_transformer import Ensemble, SamplingOptions, SearchOptions
from keras_transformer._backend.compile_function import makes_graphs
from keras_transformer.decoding.batch_search import (
    FEW_SHAPES_SENTENCES,
    GRAPH_SENTENCES,
    BatchSearch,
    batch_sizes,
    stage_lengths,
)
from keras_transformer.decoding.buckets import FEW_SHAPES, IN_GRAPH, MANY_SHAPES
from keras_transformer.decoding.decoding_loop import make_strategy, search, stages
from keras_transformer.decoding.sampling import random_numbers
from keras_transformer.decoding.steps import Request
from keras_transformer.layers.attention.cache import Cache

BATCH, MAX_LENGTH, V = 32, 26, 13


class FixedModel(PrefixModel):
    """Writes down how many sentences it is asked about."""

    accepts_any_shape = True

    def __init__(self):
        super().__init__(V)
        self.shapes = set()

    def step(self, token_ids, cache, position):
        self.shapes.add(self.shape(cache))
        return super().step(token_ids, cache, position)

    def shape(self, cache):
        return tuple(cache.sentence["source"].shape)


class GrowingModel(FixedModel):
    """Writes down how many positions its cache has, too."""

    accepts_any_shape = False

    def init_cache(self, source_ids, max_length, beam_size=1):
        return self.extend_cache(super().init_cache(source_ids, max_length, beam_size), max_length)

    def extend_cache(self, cache, max_length):
        rows = ops.shape(cache.sentence["source"])[0]
        room = ops.zeros((rows, max_length), "int32")
        return cache._replace(sentence={**cache.sentence, "room": room})

    def shape(self, cache):
        return tuple(cache.sentence["room"].shape)


def sources():
    generator = np.random.default_rng(3)
    ids = generator.integers(4, V, (BATCH, 6)).astype("int32")
    ids[::3, 4:] = 0
    return ids


def limits():
    """Half have ended after 5 tokens, three quarters after 11, all but one after 20."""
    return np.array([3, 9, 14, 2, 20, 5, 11, 7] * 3 + [1] * 7 + [MAX_LENGTH], "int32")


def assert_equal(found, expected):
    for name, actual, wanted in zip(found._fields, found, expected, strict=True):
        np.testing.assert_allclose(actual, to_numpy(wanted), rtol=1e-4, err_msg=name)


def staged(model, request, options, shapes=MANY_SHAPES):
    return BatchSearch(model)(request, make_strategy(model, options), MAX_LENGTH, shapes)


@pytest.mark.parametrize(
    "kind, shapes, compiled",
    [
        (GrowingModel, MANY_SHAPES, {(32, 8), (16, 8), (16, 16), (8, 16), (8, 26), (2, 26)}),
        (FixedModel, MANY_SHAPES, {(32,), (16,), (8,), (2,)}),
        (GrowingModel, FEW_SHAPES, {(32, 6), (32, 26), (8, 26)}),
        (FixedModel, FEW_SHAPES, {(32,), (8,)}),
    ],
)
def test_finds_what_search_finds_in_fewer_rows(kind, shapes, compiled):
    # Sentences that end before their limits would blur the count.
    model, options = kind(), SearchOptions(beam_size=3, n_best=2)
    model.table[:, 3] = -20.0
    found = staged(model, Request(sources(), limits()), options, shapes)
    assert model.shapes == compiled
    expected = beam_search(model, sources(), limits(), max_length=MAX_LENGTH, beam_size=3, n_best=2)
    assert_equal(found, expected)


@pytest.mark.slow
def test_one_graph_finds_what_search_finds_in_batches_of_all_sizes():
    model, options = FixedModel(), SearchOptions(beam_size=3, n_best=2, no_repeat_ngram_size=2)
    batch_search, strategy = BatchSearch(model), make_strategy(model, options)
    words = np.full((BATCH, 1, 2), 5, "int32")
    constraints = (
        {},
        {"prefix_ids": words[:, 0], "forbidden_ids": words + 1},
        {"required_ids": words},
    )
    for batch, max_length in ((BATCH, MAX_LENGTH), (5, 9), (1, 3)):
        for fields in constraints:
            own = {name: ids[:batch] for name, ids in fields.items()}
            request = Request(sources()[:batch], limits()[:batch], **own)
            shapes = batch_search.shapes(batch, strategy)
            assert shapes.in_graph == makes_graphs()
            found = batch_search(request, strategy, max_length, shapes)
            assert_equal(found, search(model, request, max_length=max_length, options=options))


def test_ngrams_longer_than_a_translation_forbid_nothing():
    model, request = FixedModel(), Request(sources()[:2])
    found = []
    for size in (0, 9):
        batch_search = BatchSearch(model)
        strategy = make_strategy(model, SearchOptions(no_repeat_ngram_size=size))
        found.append(batch_search(request, strategy, 4, batch_search.shapes(2, strategy)).ids)
    np.testing.assert_array_equal(*found)


def test_more_sentences_are_worth_more_programs():
    model = FixedModel()
    batch_search, strategy = BatchSearch(model), make_strategy(model, SearchOptions())
    counts = (1, GRAPH_SENTENCES, FEW_SHAPES_SENTENCES)
    found = [batch_search.shapes(count, strategy) for count in counts]
    many = MANY_SHAPES
    expected = {
        "tensorflow": [IN_GRAPH, FEW_SHAPES, many],
        "jax": [FEW_SHAPES, FEW_SHAPES, many],
        "torch": [many] * 3,
    }
    assert found == expected[keras.config.backend()]


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_transformer_goes_on_with_the_sentences_that_are_taken(ensemble):
    model = new_model("rotary", num_layers=1)
    model = Ensemble([model, model]) if ensemble else model
    tokens, rows = np.full((3, 2), 7, "int32"), np.array([2, 0], "int32")
    _, cache = model.step(tokens, model.init_cache(sources()[:3], 2, beam_size=2), 0)
    expected, _ = model.step(tokens, cache, 1)
    found, _ = model.step(tokens[rows], cache.take_sentences(rows, 3), 1)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected)[rows], atol=1e-6)


class NumpyModel(PrefixModel):
    """Computes with NumPy, which no backend compiles."""

    compiles = False

    def init_cache(self, source_ids, max_length, beam_size=1):
        source = to_numpy(source_ids).sum(axis=1)
        return Cache([{"row": np.repeat(source[:, None], beam_size, axis=1)}], {"source": source})

    def step(self, token_ids, cache, position):
        row, token, source = map(
            to_numpy, (cache.beam[0]["row"], token_ids, cache.sentence["source"])
        )
        row = self._row(row, token, int(position), source[:, None])
        return self.table[row], cache._replace(beam=[{"row": row}])


@pytest.mark.parametrize("options", [SearchOptions(n_best=2), SamplingOptions(top_p=0.9)])
def test_a_model_that_does_not_compile_is_searched_by_python(options):
    request = Request(sources(), limits())
    if isinstance(options, SamplingOptions):
        request = request._replace(random_numbers=random_numbers(1, range(BATCH), 1, MAX_LENGTH))
    expected = quick_search(PrefixModel(V), request, MAX_LENGTH, options)
    model = NumpyModel(V)
    assert_equal(quick_search(model, request, MAX_LENGTH, options), expected)
    assert_equal(staged(model, request, options), expected)
    both = Ensemble([model, PrefixModel(V)])
    assert_equal(quick_search(both, request, MAX_LENGTH, options), expected)


def test_stages_double_and_end_with_the_length():
    assert stages(GrowingModel(), 100, 8) == [8, 16, 32, 64, 100]
    assert stages(GrowingModel(), 16, 8) == [8, 16]
    assert stages(GrowingModel(), 5, 8) == [5]
    assert stages(FixedModel(), 100, 8) == [100]
    assert stage_lengths(GrowingModel(), 32, 100, FEW_SHAPES) == [32, 100]
    assert stage_lengths(GrowingModel(), 128, 100, FEW_SHAPES) == [100]
    assert stage_lengths(GrowingModel(), 32, 100, MANY_SHAPES) == [8, 16, 32, 64, 100]
    assert stage_lengths(FixedModel(), 32, 100, FEW_SHAPES) == [100]


def test_batches_shrink_to_two_rows_and_a_batch_of_one_stays():
    assert batch_sizes(64, MANY_SHAPES) == [64, 32, 16, 8, 2]
    assert [batch_sizes(rows, MANY_SHAPES) for rows in (2, 1)] == [[2], [1]]
    assert [batch_sizes(rows, FEW_SHAPES) for rows in (64, 16, 4)] == [[64, 16], [16, 4], [4]]


@contextmanager
def floatx(name):
    before = keras.config.floatx()
    keras.config.set_floatx(name)
    try:
        yield
    finally:
        keras.config.set_floatx(before)


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(coverage_penalty=0.2),
        SearchOptions(no_repeat_ngram_size=2, repetition_penalty=1.5),
        SearchOptions(beam_size=2, num_beam_groups=2, diversity_penalty=0.5),
    ],
)
def test_the_dtype_of_new_layers_does_not_matter(options):
    model, source_ids = small_model(), sources()[:2]
    request = Request(source_ids, required_ids=np.full((2, 1, 1), 7, "int32"))
    with eagerly():
        expected = quick_search(model, request, 6, options)
        with floatx("bfloat16"):
            found = quick_search(model, request, 6, options)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0)])
def test_constraints_without_tokens_change_nothing(shape):
    model, source_ids = PrefixModel(V), sources()[:2]
    words = np.zeros(shape, "int32")
    request = {
        "prefix_ids": np.zeros((2, 0), "int32"),
        "forbidden_ids": words,
        "required_ids": words,
    }
    request["shortlist"] = np.arange(V, dtype="int32") + np.zeros((2, 1), "int32")
    free = search(model, source_ids, max_length=4)
    found = search(model, Request(source_ids, **request, beam_sizes=[4, 4]), max_length=4)
    np.testing.assert_array_equal(to_numpy(found.ids), to_numpy(free.ids))


WORDS, NUMBERS = np.ones((2, 1, 1), "int32"), np.zeros((2, 1, 4), "float32")


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "request_", "name"),
    [
        (SearchOptions(), {"random_numbers": NUMBERS}, "random_numbers"),
        (SearchOptions(), {"required_ids": WORDS, "beam_sizes": [1, 2]}, "beam_sizes"),
        (SearchOptions(coverage_penalty=0.2), {}, "needs a model with attention"),
        (
            SearchOptions(num_beam_groups=2, diversity_penalty=1.0),
            {"beam_sizes": [1, 2]},
            "can't be combined with `num_beam_groups`",
        ),
        (SamplingOptions(), {"random_numbers": NUMBERS, "required_ids": WORDS}, "required_ids"),
        (SamplingOptions(), {}, "random_numbers.shape=None, num_samples=1"),
    ],
)
def test_what_a_search_cannot_do_is_refused(options, request_, name):
    request = Request(sources()[:2], **request_)
    with pytest.raises(ValueError, match=name):
        search(PrefixModel(V), request, max_length=4, options=options)


def test_a_length_may_be_an_integer_of_numpy():
    model, source_ids = PrefixModel(V), sources()[:2]
    found, expected = (search(model, source_ids, max_length=n) for n in (np.int64(6), 6))
    np.testing.assert_array_equal(to_numpy(found.ids), to_numpy(expected.ids))
