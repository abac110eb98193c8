"""Sampling against distributions that can be read off, and against plain Python."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from support.cases import once
from support.fake_models import BOS, EOS, PAD, BigramModel, PrefixModel
from support.searching import sample

from keras_transformer.decoding import random_numbers

A, Z, V = 4, 5, 9
SOURCES = np.array([[7, 3], [11, 3], [20, 3], [35, 3]], "int32")
PREFIX_MODEL = PrefixModel(V)


class UnigramModel(BigramModel):
    """The same logits at every step; they can be changed without compiling anew."""

    def __init__(self, vocabulary_size):
        self.logits = keras.Variable(np.zeros(vocabulary_size), dtype="float32", trainable=False)
        self.variables = [self.logits]

    def step(self, token_ids, cache, position):
        return ops.zeros((*ops.shape(token_ids), 1)) + self.logits, cache


class ForbidsAllBut:
    """Forbids every token but one, and that one too from a position on."""

    def __init__(self, token, end):
        self.token, self.end = token, end

    def __call__(self, log_probabilities, ids, position):
        tokens = ops.arange(log_probabilities.shape[-1])
        allowed = ops.logical_and(tokens == self.token, position < self.end)
        return ops.where(allowed, log_probabilities, float("-inf"))


unigram_model = functools.cache(UnigramModel)


def draw(model, numbers, source_ids=SOURCES, max_lengths=None, **options):
    options = {"num_samples": numbers.shape[1], "max_length": numbers.shape[2], **options}
    return sample(model, source_ids, numbers, max_lengths, **options)


def draw_tokens(logits, numbers, **options):
    """The first tokens that `numbers` `(N,)` give."""
    model = unigram_model(len(logits))
    model.logits.assign(logits)
    numbers = np.asarray(numbers, "float32")[None, :, None]
    return draw(model, numbers, SOURCES[:1], **options).ids[0, :, 0]


def distribution(logits, temperature=1.0, top_k=0, top_p=1.0):
    """What is to be drawn from, by NumPy and with the vocabulary sorted."""
    exponentials = np.exp(np.asarray(logits, "float64") / temperature)
    exponentials[[PAD, BOS]] = 0
    ranked = np.argsort(-exponentials)[: top_k or None]
    cumulative = np.cumsum(exponentials[ranked]) / exponentials[ranked].sum()
    kept = ranked[: 1 + np.sum(cumulative < top_p)]
    probabilities = np.zeros(len(logits))
    probabilities[kept] = exponentials[kept] / exponentials[kept].sum()
    return probabilities


def drawn(probabilities, **options):
    """The tokens that can be drawn where these are the probabilities of EOS, A and Z."""
    logits = np.log([1e-9, 1e-9, 1e-9, *probabilities])
    return set(draw_tokens(logits, np.linspace(0.001, 0.999, 50), **options))


def test_nucleus_has_the_fewest_most_probable_tokens_and_all_that_tie_at_the_border():
    assert drawn([0.05, 0.75, 0.2], top_p=0.7) == {A}
    assert drawn([0.29, 0.4, 0.31], top_p=0.7) == {A, Z}
    assert drawn([0.31, 0.35, 0.34], top_p=0.7) == {EOS, A, Z}
    assert drawn([0.5, 0.25, 0.25], top_p=0.7) == {EOS, A, Z}
    assert drawn([0.5, 0.25, 0.25], top_k=2) == {EOS, A, Z}
    assert drawn([0.5, 0.24, 0.26], top_k=2) == {EOS, Z}
    assert drawn([0.2, 0.4, 0.4], top_k=100) == {EOS, A, Z}


@pytest.mark.parametrize(
    ("options", "vocabulary_size"),
    [
        ({"top_p": 0.95}, 32_000),
        ({"temperature": 2.0, "top_k": 5, "top_p": 0.7}, V),
        *once(({}, 255), ({"top_p": 0.95}, 255), ({}, 32_000)),
        *once(({"temperature": 0.5}, V), ({"top_k": 3}, V)),
    ],
    ids=str,
)
def test_tokens_are_where_the_cumulative_distribution_passes_the_number(vocabulary_size, options):
    logits = np.random.default_rng(2).normal(size=vocabulary_size)
    numbers = random_numbers(3, [0], 500, 1)[0, :, 0]
    tokens = draw_tokens(logits, numbers, **options)
    probabilities = distribution(logits, **options)
    cumulative = np.cumsum(probabilities)
    # Three roundings of a float32 between 1/2 and 1.
    assert (cumulative[tokens] >= numbers - 3 * 2.0**-24).all()
    assert (cumulative[tokens - 1] <= numbers + 3 * 2.0**-24).all()
    assert (probabilities[tokens] > 0).all()
    assert len(set(tokens)) > (100 if vocabulary_size > V else 1)


def test_impossible_tokens_are_never_drawn():
    """Whatever the rounding, at both ends of the vocabulary and of the random numbers."""
    logits = np.full(32_000, -1e9)
    possible = np.random.default_rng(4).choice(np.arange(1000, 31_000), 700, replace=False)
    logits[possible] = np.random.default_rng(5).normal(size=700)
    numbers = np.concatenate([np.arange(8) * 2.0**-24, 1 - np.arange(1, 9) * 2.0**-24])
    numbers = np.concatenate([numbers, random_numbers(6, [0], 484, 1)[0, :, 0]])
    tokens = draw_tokens(logits, numbers)
    assert set(tokens) <= set(possible)
    assert tokens[0] == possible.min()
    assert tokens[8] == possible.max()


def by_hand(numbers, source, limit, **options):
    """One sample of `PREFIX_MODEL` with lists, and its log-probability, whatever drew it."""
    ids, total = [], 0.0
    while len(ids) < limit and EOS not in ids:
        following = PREFIX_MODEL.log_probabilities(source, ids)
        cumulative = np.cumsum(distribution(following, **options))
        ids.append(int(np.searchsorted(cumulative, numbers[len(ids)], side="right")))
        total += following[ids[-1]]
    return ids, total


@pytest.mark.parametrize("options", [{}, *once({"temperature": 0.7, "top_k": 4, "top_p": 0.9})])
def test_agrees_with_sampling_by_hand(options):
    limits = np.array([8, 3, 8, 1])
    numbers = random_numbers(11, range(4), 3, 8)
    result = draw(PREFIX_MODEL, numbers, max_lengths=limits, **options)
    for row, source in enumerate(SOURCES):
        for column in range(3):
            ids, total = by_hand(numbers[row, column], source, limits[row], **options)
            padded = ids + [PAD] * (8 - len(ids))
            assert result.ids[row, column].tolist() == padded
            assert result.lengths[row, column] == len(ids)
            np.testing.assert_allclose(result.log_probabilities[row, column], total, rtol=1e-5)
    np.testing.assert_array_equal(result.scores, result.log_probabilities)
    assert len(set(result.lengths.ravel())) > 3
    assert result.steps == result.lengths.max()


def test_random_numbers_depend_on_seed_sentence_and_sample_alone():
    numbers = random_numbers(5, [0, 1, 2], 4, 10)
    np.testing.assert_array_equal(random_numbers(5, [2, 0], 2, 7), numbers[[2, 0], :2, :7])
    assert len(np.unique(np.concatenate([numbers, random_numbers(6, [0, 1, 2], 4, 10)]))) == 240
    padded = random_numbers(5, [0, 1, 2], 4, 10, num_rows=5)
    np.testing.assert_array_equal(padded, np.pad(numbers, ((0, 2), (0, 0), (0, 0))))
    assert numbers.dtype == "float32"
    assert numbers.min() >= 0 and random_numbers(5, [3], 1, 100_000).max() < 1


def test_rules_are_applied_and_one_that_leaves_nothing_ends_the_sample():
    numbers = random_numbers(0, range(4), 2, 5)
    result = draw(PREFIX_MODEL, numbers, rules=(ForbidsAllBut(A, 10),))
    assert (result.ids == A).all()
    assert np.isfinite(result.scores).all()
    dead = draw(PREFIX_MODEL, numbers, rules=(ForbidsAllBut(A, 2),), top_k=2, top_p=0.9)
    assert (dead.ids == PAD).all()
    assert (dead.lengths == 0).all()
    assert np.isneginf(dead.scores).all()
    assert dead.steps == 3
