"""A recurrent model goes through every search and `Translator`, without a line of its own there."""

import functools

import numpy as np
import pytest
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD, UNK
from support.recurrent_model import RecurrentModel
from support.searching import beam_search

from keras_transformer import SamplingOptions, SearchOptions, Tokenizer, Translator
from keras_transformer.decoding import Request
from keras_transformer.decoding.batch_search import BatchSearch
from keras_transformer.decoding.buckets import MANY_SHAPES
from keras_transformer.decoding.decoding_loop import make_strategy

V, LONGEST = 11, 20
SOURCES = np.array([[7, 9, 5, 3], [8, 3, PAD, PAD], [10, 8, 3, PAD]] * 6, "int32")


@functools.cache
def model(seed=0):
    return RecurrentModel(V, seed=seed)


def trimmed(ids):
    return [int(token) for token in ids if token != PAD]


def test_hypotheses_have_the_log_probabilities_of_the_model():
    found = beam_search(model(), SOURCES[:3], max_length=LONGEST, beam_size=3, n_best=3)
    for source, row, totals in zip(SOURCES, found.ids, found.log_probabilities, strict=False):
        for ids, total in zip(map(trimmed, row), totals, strict=True):
            expected = sum(
                model().log_probabilities(source, ids[:count])[token]
                for count, token in enumerate(ids)
            )
            np.testing.assert_allclose(total, expected, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "n_best": 2, "coverage_penalty": 0.3},
        {"beam_size": 4, "n_best": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    ],
    ids=str,
)
def test_stages_and_smaller_batches_change_nothing(options):
    limits = np.arange(3, 21).astype("int32")
    expected = beam_search(model(), SOURCES, limits, max_length=LONGEST, **options)
    strategy = make_strategy(model(), SearchOptions(**options))
    found = BatchSearch(model())(Request(SOURCES, limits), strategy, LONGEST, MANY_SHAPES)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


class Digits:
    pad_id, unk_id, bos_id, eos_id = PAD, UNK, BOS, EOS
    frame_source = Tokenizer.frame_source
    source_pieces = target_pieces = ["?"] * 4 + ["▁" + digit for digit in "0123456"]

    def encode_source(self, sentences):
        return [[4 + int(digit) for digit in sentence if digit != " "] for sentence in sentences]

    encode_target = encode_source

    def decode_target(self, ids):
        return [" ".join("?" if i < 4 else str(i - 4) for i in pieces) for pieces in ids]


def test_the_translator_takes_it():
    sentences = ["3 5", "", "1", "4 4 6 2"]
    options = SearchOptions(beam_size=3, n_best=2, max_length=9)
    translator = Translator(model(), Digits(), options)
    found = translator.translate_nbest(sentences, alignments=True)
    assert translator.translate(sentences) == [best.text for best, _ in found]
    source_ids = np.array([[7, 9, 3]], "int32")
    expected = beam_search(model(), source_ids, max_length=9, beam_size=3, n_best=2)
    assert found[0][0].ids == tuple(i for i in trimmed(expected.ids[0, 0]) if i != EOS)
    targets = np.array([[[BOS, *found[0][0].ids]]], "int32")
    attention = to_numpy(model().source_attention(source_ids, targets))
    best = attention[0, 0, : len(found[0][0].ids), :2].argmax(axis=-1)
    pairs = sorted((int(source), target) for target, source in enumerate(best))
    assert found[0][0].alignment == tuple(pairs)
    (samples,) = translator.sample(["3 5"], SamplingOptions(num_samples=3, max_length=9), seed=1)
    assert len(samples) == 3
