"""Stages and shrinking batches change nothing but the time."""

import numpy as np
import pytest
from contract import to_numpy
from fake_models import PrefixModel
from keras import ops
from small_models import new_model

from keras_transformer.decoding import Ensemble, beam_search, compile_function
from keras_transformer.decoding.staged_search import StagedBeamSearch, fewer, stages

BATCH, MAX_LENGTH, V = 32, 26, 13


class ShrinkingModel(PrefixModel):
    """Writes down how many sentences and positions it is asked about."""

    def __init__(self):
        super().__init__(V)
        self.shapes = set()

    def init_cache(self, source_ids, max_length, beam_size=1):
        cache = super().init_cache(source_ids, max_length, beam_size)
        return self.extend_cache(cache, max_length)

    def extend_cache(self, cache, max_length):
        rows = ops.shape(cache.sentence["source"])[0]
        room = ops.zeros((rows, max_length), "int32")
        return cache._replace(sentence={**cache.sentence, "room": room})

    def step(self, token_ids, cache, position):
        room = cache.sentence["room"]
        self.shapes.add(tuple(room.shape))
        logits, cache = super().step(token_ids, cache, position)
        return logits, cache._replace(sentence={**cache.sentence, "room": room})


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


def test_finds_what_beam_search_finds_in_fewer_rows():
    # Sentences that end before their limits would blur the count.
    model, options = ShrinkingModel(), {"beam_size": 3, "n_best": 2, "max_length": MAX_LENGTH}
    model.table[:, 3] = -20.0
    found = StagedBeamSearch(model)(sources(), limits(), **options)
    assert model.shapes == {(32, 8), (16, 8), (16, 16), (8, 16), (8, 26), (2, 26)}
    assert_equal(found, compile_function(beam_search, model)(sources(), limits(), **options))


def test_every_sentence_keeps_what_it_asked_for():
    generator = np.random.default_rng(4)
    words = generator.integers(4, V, (2, BATCH, 1, 2)).astype("int32")
    beam_sizes = generator.integers(1, 4, BATCH).astype("int32")
    penalties = generator.random(BATCH).astype("float32")
    arrays = [sources(), limits(), words[0, :, 0], words[1], None, beam_sizes, penalties]
    model, options = ShrinkingModel(), {"beam_size": 3, "max_length": MAX_LENGTH}
    expected = compile_function(beam_search, model)(*arrays, **options)
    assert_equal(StagedBeamSearch(model)(*arrays, **options), expected)


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_transformer_goes_on_with_the_sentences_that_are_taken(ensemble):
    model = new_model("rotary", num_layers=1)
    model = Ensemble([model, model]) if ensemble else model
    tokens, rows = np.full((3, 2), 7, "int32"), np.array([2, 0], "int32")
    _, cache = model.step(tokens, model.init_cache(sources()[:3], 2, beam_size=2), 0)
    expected, _ = model.step(tokens, cache, 1)
    found, _ = model.step(tokens[rows], cache.take_sentences(rows, 3), 1)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected)[rows], atol=1e-6)


def test_stages_double_and_end_with_the_length():
    assert stages(100) == [8, 16, 32, 64, 100]
    assert stages(16) == [8, 16]
    assert stages(5) == [5]


def test_batches_shrink_to_two_rows_and_a_batch_of_one_stays():
    assert [fewer(rows) for rows in (64, 16, 8, 2, 1)] == [32, 8, 2, 0, 0]


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="Received: n_best=3, beam_size=2"):
        StagedBeamSearch(ShrinkingModel())(sources(), max_length=4, beam_size=2, n_best=3)
