"""Few shapes for sequences of any lengths; stages and shrinking batches change only the time."""

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.fake_models import PrefixModel
from support.searching import beam_search, quick_search

from keras_transformer import Ensemble, SamplingOptions, SearchOptions
from keras_transformer._backend.compile_function import makes_graphs
from keras_transformer.decoding.batch_search import (
    FEW_SHAPES,
    MANY_SHAPES,
    BatchSearch,
    length_batches,
    pair_batches,
)
from keras_transformer.decoding.decoding_loop import make_strategy, search
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


def test_every_sequence_is_in_one_batch_and_fits_and_the_longest_come_first():
    (batch,) = length_batches([3, 14, 5, 3], tokens_per_batch=64, longest=64)
    assert batch.indices == [1, 2, 0, 3]
    lengths = np.random.default_rng(1).integers(1, 101, 500).tolist()
    batches = list(length_batches(lengths, tokens_per_batch=256, longest=100))
    assert sorted(index for batch in batches for index in batch.indices) == list(range(500))
    for indices, rows, width in batches:
        assert len(indices) <= rows
        assert max(lengths[index] for index in indices) <= width <= 100
        assert rows * width <= 256


def test_long_lists_have_one_shape_a_width():
    generator = np.random.default_rng(2)
    shapes = set()
    for count in (1000, 777, 501):
        batches = length_batches(generator.integers(1, 65, count).tolist(), 256, longest=64)
        shapes |= {(rows, width) for _, rows, width in batches}
    assert shapes == {(32, 8), (16, 16), (8, 32), (4, 64)}
    too_long = list(length_batches([100, 90], tokens_per_batch=64, longest=100))
    assert too_long == [([0], 1, 100), ([1], 1, 100)]


def test_pairs_are_as_wide_as_the_longer_side():
    sources = [[5, 3], [6, 3], [7, 8, 3]]
    targets = [[[2], [2, 4]], [[2, *[4] * 8], [2]], [[2], [2]]]
    batches = pair_batches(sources, targets, tokens_per_batch=16, longest=64, pad_id=0)
    (first, source_ids, target_ids), (second, _, others) = batches
    assert (first, source_ids.shape, target_ids.shape) == ([1], (1, 16), (1, 2, 16))
    np.testing.assert_array_equal(source_ids[0], [6, 3, *[0] * 14])
    np.testing.assert_array_equal(target_ids[0, 0], [2, *[4] * 8, *[0] * 7])
    assert (second, others.shape) == ([2, 0], (2, 2, 8))
    np.testing.assert_array_equal(others[1, :, :2], [[2, 0], [2, 4]])


def test_a_short_list_has_one_shape_unless_one_is_much_longer():
    def shapes(lengths):
        batches = length_batches(lengths, 2048, longest=1024, shapes=FEW_SHAPES)
        return [(len(indices), rows, width) for indices, rows, width in batches]

    assert shapes([40, *[20] * 99]) == [(32, 32, 64)] * 3 + [(4, 32, 64)]
    assert shapes([40, *[20] * 299]) == [(32, 32, 64), *[(64, 64, 32)] * 4, (12, 64, 32)]
    assert shapes([600, *[20] * 9]) == [(2, 2, 1024), (8, 16, 32)]
