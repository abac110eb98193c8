"""Token rules against plain Python, one hypothesis at a time."""

import functools

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD, PrefixModel
from support.searching import beam_search

from keras_transformer import compile_function
from keras_transformer.decoding.token_rules import (
    ForbiddenWords,
    MinLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    forbid_sequences,
    force_prefix,
)

B, N, V, L = 3, 5, 7, 11
SOURCES = np.array([[7, 3], [11, 3], [20, 3], [35, 3]], "int32")


def hypotheses(position, seed=0):
    """Log-probabilities `(B, N, V)` and ids `(B, N, 1 + L)` of `position` tokens."""
    generator = np.random.default_rng(seed)
    log_probabilities = np.log(generator.dirichlet(np.ones(V), (B, N))).astype("float32")
    ids = np.full((B, N, 1 + L), PAD, "int32")
    ids[:, :, 0] = BOS
    ids[:, :, 1 : 1 + position] = generator.choice([1, 4, 5, 6], (B, N, position))
    return log_probabilities, ids


class NoModel:
    variables = ()


@functools.cache
def compiled(rule):
    def apply(model, log_probabilities, ids, position, *more):
        tensors = map(ops.convert_to_tensor, (log_probabilities, ids, position))
        return rule(*tensors, *more)

    return compile_function(apply, NoModel())


def apply(rule, log_probabilities, ids, position, *more):
    """What a rule gives where `position` is a tensor."""
    position = np.asarray(position, "int32")
    return to_numpy(compiled(rule)(log_probabilities, ids, position, *more))


def each(rule, position, expected, seed=0):
    """Holds a rule to what `expected` does to `(log_probabilities (V,), decoded tokens)`."""
    log_probabilities, ids = hypotheses(position, seed)
    found = apply(rule, log_probabilities, ids, position)
    for row in np.ndindex(B, N):
        wanted = log_probabilities[row].copy()
        expected(wanted, ids[row][1 : 1 + position].tolist())
        np.testing.assert_allclose(found[row], wanted, rtol=1e-6, err_msg=str(ids[row]))


def forbids(log_probabilities, tokens):
    log_probabilities[list(tokens)] = -np.inf


def completions(decoded, sequences):
    """The tokens that would complete one of the sequences."""
    return {
        sequence[-1]
        for sequence in map(tuple, sequences)
        if tuple(decoded[len(decoded) - len(sequence) + 1 :]) == sequence[:-1]
        and len(decoded) >= len(sequence) - 1
    }


@pytest.mark.parametrize("position", [0, 1, 6, L])
def test_repetition_penalty_multiplies_what_is_decoded_once(position):
    def expected(log_probabilities, decoded):
        for token in set(decoded):
            log_probabilities[token] *= 1.7

    each(RepetitionPenalty(1.7), position, expected)


@pytest.mark.parametrize("position", [0, 2, 8, L])
@pytest.mark.parametrize("size", [1, 3, L + 1])
def test_no_ngram_is_repeated(size, position):
    def expected(log_probabilities, decoded):
        ngrams = [decoded[start : start + size] for start in range(len(decoded) - size + 1)]
        forbids(log_probabilities, completions(decoded, ngrams))

    each(NoRepeatNgrams(size), position, expected, seed=size)


@pytest.mark.parametrize(("position", "is_forbidden"), [(0, True), (2, True), (3, False)])
def test_eos_is_the_token_of_the_minimum_length_at_the_earliest(position, is_forbidden):
    def expected(log_probabilities, decoded):
        forbids(log_probabilities, [EOS] * is_forbidden)

    each(MinLength(4, EOS), position, expected)


WORDS = ((4, 5), (6,), (5, 5, 4), (1, 4, 5, 6))


@pytest.mark.parametrize("position", [0, 1, 2, 3, 9, L])
def test_forbidden_words_are_never_completed(position):
    def expected(log_probabilities, decoded):
        forbids(log_probabilities, completions(decoded, WORDS))

    each(ForbiddenWords(WORDS), position, expected, seed=position)


def test_each_sentence_has_its_own_forbidden_sequences():
    """Of 6, 4, 5 as decoded, in 3 sentences; the first sequences are no suffixes."""
    log_probabilities, ids = hypotheses(3)
    ids[:, :, 1:4] = [6, 4, 5]
    sequences = np.full((B, 3, 4), PAD, "int32")
    sequences[0, 0, :2] = [6, 1]
    sequences[0, 1, :3] = [4, 5, 6]
    sequences[1, 2, :4] = [6, 4, 5, EOS]
    sequences[1, 0, :4] = [5, 4, 5, 4]
    found = apply(forbid_sequences, log_probabilities, ids, 3, sequences, PAD)
    expected = log_probabilities.copy()
    expected[0, :, 6] = -np.inf
    expected[1, :, EOS] = -np.inf
    np.testing.assert_array_equal(found, expected)


def test_a_prefix_is_forced_until_it_is_complete():
    prefixes = np.array([[5, 6, 4], [6, PAD, PAD], [PAD, PAD, PAD]], "int32")
    for position in range(5):
        log_probabilities, ids = hypotheses(position)
        found = apply(force_prefix, log_probabilities, ids, position, prefixes, PAD)
        for row, prefix in enumerate(prefixes):
            prefix = prefix[prefix != PAD]
            expected = log_probabilities[row].copy()
            if position < len(prefix):
                expected[:, np.arange(V) != prefix[position]] = -np.inf
            np.testing.assert_array_equal(found[row], expected)


def test_rules_hold_in_a_compiled_search():
    rules = (NoRepeatNgrams(2), MinLength(6), ForbiddenWords(((5, 6), (1,))))
    model = PrefixModel(V)
    free = beam_search(model, SOURCES, max_length=L, beam_size=1).ids[:, 0]
    ruled = beam_search(model, SOURCES, max_length=L, beam_size=1, rules=rules)
    assert np.isfinite(to_numpy(ruled.scores)).all()
    assert not all(map(is_ruled, free))
    assert all(map(is_ruled, to_numpy(ruled.ids)[:, 0]))


def is_ruled(ids):
    tokens = ids[ids != PAD].tolist()
    pairs = list(zip(tokens, tokens[1:], strict=False))
    is_long = len(tokens) >= 6
    return len(set(pairs)) == len(pairs) and (5, 6) not in pairs and 1 not in tokens and is_long


@pytest.mark.parametrize("rule", [RepetitionPenalty(1.5), NoRepeatNgrams(1), NoRepeatNgrams(2)])
def test_the_id_of_padding_may_be_outside_of_the_vocabulary(rule):
    log_probabilities, ids = hypotheses(position=4)
    outside = np.where((ids == PAD) | (ids == BOS), -1, ids)
    expected = apply(rule, log_probabilities, ids, 4)
    np.testing.assert_array_equal(apply(rule, log_probabilities, outside, 4), expected)
