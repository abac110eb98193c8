"""Few shapes for sequences of any lengths; stages and shrinking batches change only the time."""

import numpy as np
import pytest
from keras import ops
from support.cases import once
from support.contract import to_numpy
from support.fake_models import PrefixModel
from support.searching import beam_search, quick_search

from keras_transformer import Ensemble, SamplingOptions, SearchOptions
from keras_transformer._backend.compile_function import makes_graphs
from keras_transformer.decoding.batch_search import (
    FEW_SHAPES,
    FIXED_SHAPES,
    MANY_SHAPES,
    BatchSearch,
)
from keras_transformer.decoding.decoding_loop import make_strategy, search
from keras_transformer.decoding.request import Request
from keras_transformer.decoding.sampling import random_numbers
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
        (GrowingModel, FEW_SHAPES, {(32, 6), (32, 26), (8, 26)}),
        *once(
            (GrowingModel, MANY_SHAPES, {(32, 8), (16, 8), (16, 16), (8, 16), (8, 26), (2, 26)}),
            (FixedModel, MANY_SHAPES, {(32,), (16,), (8,), (2,)}),
            (FixedModel, FEW_SHAPES, {(32,), (8,)}),
            (GrowingModel, FIXED_SHAPES, {(32, 26)}),
        ),
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


@pytest.mark.once  # on PyTorch
def test_shapes_that_a_gpu_of_pytorch_records_are_few(monkeypatch):
    strategy = make_strategy(FixedModel(), SearchOptions())
    assert BatchSearch(FixedModel()).shapes(10, strategy) is MANY_SHAPES
    monkeypatch.setattr("keras_transformer.decoding.batch_search.is_on_cuda", lambda: True)
    assert BatchSearch(FixedModel()).shapes(10, strategy) is FEW_SHAPES
    assert BatchSearch(FixedModel()).shapes(10**6, strategy) is MANY_SHAPES


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


@pytest.mark.once
@pytest.mark.parametrize("options", [SearchOptions(n_best=2), SamplingOptions(top_p=0.9)])
def test_a_model_that_does_not_compile_is_searched_by_python(options):
    request = Request(sources(), limits())
    if isinstance(options, SamplingOptions):
        request = request._replace(random_numbers=random_numbers(1, range(BATCH), 1, MAX_LENGTH))
    expected = quick_search(PrefixModel(V), request, MAX_LENGTH, options)
    model = NumpyModel(V)
    assert_equal(quick_search(model, request, MAX_LENGTH, options), expected)
    assert_equal(staged(model, request, options, FEW_SHAPES), expected)
    both = Ensemble([model, PrefixModel(V)])
    assert_equal(quick_search(both, request, MAX_LENGTH, options), expected)
