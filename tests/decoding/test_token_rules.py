"""Token rules and dynamic beam allocation against plain Python, one hypothesis at a time."""

import functools

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.fake_models import BOS, PAD
from support.searching import rule_by_hand

from keras_transformer import compile_function
from keras_transformer.decoding.token_rules import (
    ForbiddenWords,
    MinLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    allocate_beams,
    banks_of,
    next_required_tokens,
)

B, N, V, L = 3, 5, 7, 11


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


WORDS = ((4, 5), (6,), (5, 5, 4), (1, 4, 5, 6))


@pytest.mark.parametrize(
    "rule, by_hand, positions",
    [
        (NoRepeatNgrams(1), {"no_repeat_ngram_size": 1}, [0, 8]),
        (NoRepeatNgrams(3), {"no_repeat_ngram_size": 3}, [2, 8, L]),
        (NoRepeatNgrams(L + 1), {"no_repeat_ngram_size": L + 1}, [8, L]),
        (ForbiddenWords(WORDS), {"forbidden": WORDS}, [0, 1, 3, L]),
        (ForbiddenWords(()), {}, [0]),
        (RepetitionPenalty(1.5), {"repetition_penalty": 1.5}, [0, 8]),
        (MinLength(4), {"min_length": 4}, [2, 3]),
    ],
)
def test_rules_do_what_they_do_by_hand(rule, by_hand, positions):
    for position in positions:
        log_probabilities, ids = hypotheses(position, seed=position)
        found = apply(rule, log_probabilities, ids, position)
        for row in np.ndindex(B, N):
            decoded = ids[row][1 : 1 + position].tolist()
            expected = rule_by_hand(**by_hand)(log_probabilities[row], decoded)
            np.testing.assert_allclose(found[row], expected, rtol=1e-6, err_msg=f"{decoded}")


@pytest.mark.parametrize("rule", [RepetitionPenalty(1.5), NoRepeatNgrams(1), NoRepeatNgrams(2)])
def test_the_id_of_padding_may_be_outside_of_the_vocabulary(rule):
    log_probabilities, ids = hypotheses(position=4)
    outside = np.where((ids == PAD) | (ids == BOS), -1, ids)
    expected = apply(rule, log_probabilities, ids, 4)
    np.testing.assert_array_equal(apply(rule, log_probabilities, outside, 4), expected)


INF = np.inf


def met_by_hand(decoded, sequence):
    """Tokens of `sequence` that are met: all, or the longest proper prefix at the end."""
    size = len(sequence)
    windows = [decoded[start : start + size] for start in range(len(decoded) - size + 1)]
    if sequence in windows:
        return size
    return max(n for n in range(size) if decoded[len(decoded) - n :] == sequence[:n])


def random_problem(seed):
    """Hypotheses of few distinct tokens, and sequences of one to three of them."""
    generator = np.random.default_rng(seed)
    decoded = generator.choice([4, 5, 6], (5, 6, 1 + seed)).tolist()
    lengths = generator.integers(1, 4, (5, 4))
    sequences = [[generator.choice([4, 5, 6], n).tolist() for n in row] for row in lengths]
    required = [[words + [PAD] * (3 - len(words)) for words in row] for row in sequences]
    ids = [[[BOS, *words] + [PAD] * (9 - len(words)) for words in row] for row in decoded]
    return decoded, sequences, np.array(ids, "int32"), np.array(required, "int32")


@pytest.mark.parametrize("seed", [0, 3])
def test_overlapping_sequences_are_met_as_by_hand(seed):
    decoded, sequences, ids, required = random_problem(seed)
    position = len(decoded[0][0])
    wanted = to_numpy(next_required_tokens(ids, position, required, PAD))
    banks = to_numpy(banks_of(ids, position, required, PAD))
    for row, column in np.ndindex(banks.shape):
        counts = [met_by_hand(decoded[row][column], words) for words in sequences[row]]
        pairs = list(zip(counts, sequences[row], strict=True))
        expected = [-1 if count == len(words) else words[count] for count, words in pairs]
        assert wanted[row, column].tolist() == expected
        met = sum(count for count, words in pairs if count == len(words))
        in_progress = [count for count, words in pairs if count < len(words)]
        assert banks[row, column] == met + max(in_progress, default=0)


def allocated_by_hand(log_probabilities, banks, beam_size):
    by_bank = {bank: [] for bank in sorted(set(banks), reverse=True)}
    for candidate in np.argsort(-np.array(log_probabilities), kind="stable"):
        if log_probabilities[candidate] > -INF:
            by_bank[banks[candidate]].append(candidate)
    chosen = []
    while len(chosen) < beam_size:
        chosen += [queue.pop(0) for queue in by_bank.values() if queue]
    return sorted(chosen[:beam_size], key=lambda candidate: -log_probabilities[candidate])


def test_beams_are_given_out_turn_by_turn():
    generator = np.random.default_rng(0)
    log_probabilities = -generator.random((20, 13)).astype("float32")
    log_probabilities[generator.random((20, 13)) < 0.2] = -INF
    banks = generator.integers(0, 4, (20, 13)).astype("int32")
    tensors = map(ops.convert_to_tensor, (log_probabilities, banks))
    found = to_numpy(allocate_beams(*tensors, 6))
    for row in range(20):
        expected = allocated_by_hand(log_probabilities[row].tolist(), banks[row].tolist(), 6)
        assert found[row].tolist() == expected
