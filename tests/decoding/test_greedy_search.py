"""Greedy search against models whose probabilities can be read off."""

import functools

import numpy as np
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD, UNK, BigramModel, PrefixModel

from keras_transformer.decoding import SearchResult, compile_function, greedy_search

A, Z, V = 4, 5, 6
SOURCES = np.array([[7, 3], [11, 3], [20, 3], [35, 3]], "int32")


PREFIX_MODEL = PrefixModel(V)


@functools.cache
def compiled(model):
    return compile_function(greedy_search, model)


def search(model, source_ids=SOURCES, max_lengths=None, **options):
    return SearchResult(*map(to_numpy, compiled(model)(source_ids, max_lengths, **options)))


def test_takes_the_most_probable_token_until_eos():
    model = BigramModel({BOS: {A: 0.6, Z: 0.4}, A: {Z: 0.7, EOS: 0.3}, Z: {EOS: 0.9, A: 0.1}}, V)
    result = search(model, SOURCES[:1], max_length=5)
    np.testing.assert_array_equal(result.ids, [[[A, Z, EOS, PAD, PAD]]])
    np.testing.assert_allclose(result.log_probabilities, [[np.log(0.6 * 0.7 * 0.9)]], rtol=1e-5)
    np.testing.assert_array_equal(result.scores, result.log_probabilities)
    assert result.lengths.tolist() == [[3]]
    assert result.steps == 3


def test_padding_and_bos_are_never_chosen_but_unk_is():
    model = BigramModel({BOS: {PAD: 0.4, BOS: 0.4, UNK: 0.2}, UNK: {EOS: 1.0}}, V)
    assert search(model, SOURCES[:1], max_length=3).ids.tolist() == [[[UNK, EOS, PAD]]]


def test_each_sentence_is_cut_at_its_own_maximum_length():
    model = BigramModel({BOS: {A: 1.0}, A: {A: 1.0}}, V)
    result = search(model, SOURCES, max_lengths=np.array([1, 3, 4, 9]), max_length=5)
    assert result.lengths.tolist() == [[1], [3], [4], [5]]
    assert result.ids[1, 0].tolist() == [A, A, A, PAD, PAD]


def test_a_sentence_does_not_depend_on_its_batch():
    together = search(PREFIX_MODEL, max_length=6)
    assert len(set(together.lengths.ravel())) > 1
    for row, source in enumerate(SOURCES):
        alone = search(PREFIX_MODEL, np.repeat(source[None], len(SOURCES), axis=0), max_length=6)
        np.testing.assert_array_equal(alone.ids[0], together.ids[row])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


def test_agrees_with_search_by_hand():
    result = search(PREFIX_MODEL, max_length=6)
    for row, source in enumerate(SOURCES):
        ids, total = [], 0.0
        while len(ids) < 6 and EOS not in ids:
            following = PREFIX_MODEL.log_probabilities(source, ids)
            following[[PAD, BOS]] = -np.inf
            ids.append(int(np.argmax(following)))
            total += following[ids[-1]]
        assert result.ids[row, 0, : len(ids)].tolist() == ids
        np.testing.assert_allclose(result.log_probabilities[row, 0], total, rtol=1e-5)
