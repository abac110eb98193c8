"""Beam search against hand-made models, exhaustive search and a plain Python beam search."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD, BigramModel, PrefixModel
from support.searching import beam_search as search, eagerly, has, quick_search, rule_by_hand
from support.small_models import inputs_of, small_model

from keras_transformer import SearchOptions
from keras_transformer.decoding import Request

A, Z, V = 4, 5, 6
SOURCES = np.array([[7, 3], [11, 3], [20, 3], [35, 3], [36, 3]], "int32")


PREFIX_MODEL = PrefixModel(9)


def penalty(length, length_penalty):
    return ((5 + length) / 6) ** length_penalty


def trimmed(ids):
    return [int(token) for token in ids if token != PAD]


def all_hypotheses(model, source, max_length, length_penalty, rule=None, divisor=penalty):
    """Every possible hypothesis as (score, ids), best first."""
    rule = rule or (lambda log_probabilities, ids: log_probabilities)
    hypotheses, prefixes = [], [((), 0.0)]
    while prefixes:
        ids, total = prefixes.pop()
        following = rule(model.log_probabilities(source, ids), ids)
        for token, log_probability in enumerate(following):
            longer = ((*ids, token), total + log_probability)
            if token in (PAD, BOS) or np.isneginf(log_probability):
                continue
            if token == EOS or len(longer[0]) == max_length:
                hypotheses.append((longer[1] / divisor(len(longer[0]), length_penalty), longer[0]))
            else:
                prefixes.append(longer)
    return sorted(hypotheses, reverse=True)


def plain_beam_search(model, source, beam_size, max_length, length_penalty):
    """The rules of `beam_search` with lists; runs on until N have finished or none is left."""
    live, finished = [((), 0.0)], []
    for length in range(1, max_length + 1):
        candidates = [
            (total + log_probability, (*ids, token))
            for ids, total in live
            for token, log_probability in enumerate(model.log_probabilities(source, ids))
            if token not in (PAD, BOS)
        ]
        candidates.sort(reverse=True)
        ends = [ids[-1] == EOS or length == max_length for _, ids in candidates]
        finished += [
            (total / penalty(length, length_penalty), ids)
            for (total, ids), end in list(zip(candidates, ends, strict=True))[:beam_size]
            if end
        ]
        if len(finished) >= beam_size:
            break
        going_on = [pair for pair, end in zip(candidates, ends, strict=True) if not end]
        live = [(ids, total) for total, ids in going_on[:beam_size]]
    return sorted(finished, reverse=True)


TOKENS = st.sampled_from([1, A, Z])
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=2), max_size=2)


@pytest.mark.once
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {
            "length_penalty": st.sampled_from([0.0, 0.6, 2.0]),
            "length_penalty_form": st.sampled_from(["wu", "power"]),
            "min_length": st.integers(1, 4),
            "repetition_penalty": st.sampled_from([0.5, 1.0, 1.5]),
            "no_repeat_ngram_size": st.integers(0, 3),
        }
    ),
    st.lists(TOKENS, max_size=2),
    WORDS,
    WORDS,
    st.integers(4, 40),
)
def test_any_mix_of_options_equals_exhaustive_search(options, prefix, forbidden, required, source):
    """All hypotheses that have the required words, with their scores."""
    model, width = PrefixModel(V), 2
    arrays = {
        "prefix_ids": [[*prefix, *[PAD] * (width - len(prefix))]],
        "forbidden_ids": [[[*w, *[PAD] * (width - len(w))] for w in [*forbidden, [], []][:2]]],
        "required_ids": [[[*w, *[PAD] * (width - len(w))] for w in [*required, [], []][:2]]],
    }
    request = Request(np.array([[source]]), **{k: np.array(x) for k, x in arrays.items()})
    size = SearchOptions(beam_size=128, n_best=128, **options)
    with eagerly():
        result = quick_search(model, request, 4, size)
    divisor = penalty if options.pop("length_penalty_form") == "wu" else pow
    length_penalty = options.pop("length_penalty")
    rule = rule_by_hand(**options, prefix=prefix, forbidden=forbidden)
    hypotheses = all_hypotheses(model, [source], 4, length_penalty, rule, divisor)
    expected = {
        ids: score for score, ids in hypotheses if all(has(ids, words) for words in required)
    }
    found = {
        tuple(trimmed(ids)): score
        for ids, score in zip(result.ids[0], result.scores[0], strict=True)
        if score > -500  # A missing word costs 1,000.
    }
    assert found.keys() == expected.keys()
    for ids, score in found.items():
        np.testing.assert_allclose(score, expected[ids], rtol=1e-4)


@pytest.mark.parametrize(
    ("beam_size", "beam_sizes", "length_penalties"),
    [(3, None, None), (1, None, None), (3, [1, 2, 3, 1, 2], [0.0, 2.0, 0.6, 1.0, 0.0])],
    ids=["beam", "greedy", "each sentence its own"],
)
def test_agrees_with_plain_beam_search(beam_size, beam_sizes, length_penalties):
    """A sentence that is closed may have found more."""
    own = {"beam_sizes": beam_sizes, "length_penalties": length_penalties}
    result = search(
        PREFIX_MODEL, SOURCES, max_length=7, beam_size=beam_size, n_best=beam_size, **own
    )
    sizes, penalties = beam_sizes or [beam_size] * 5, length_penalties or [0.6] * 5
    for row, source in enumerate(SOURCES):
        size = sizes[row]
        expected = plain_beam_search(PREFIX_MODEL, source, size, 7, penalties[row])[:size]
        assert [tuple(trimmed(ids)) for ids in result.ids[row, :size]] == [x for _, x in expected]
        np.testing.assert_allclose(result.scores[row, :size], [x for x, _ in expected], rtol=1e-5)
        assert np.all(np.isneginf(result.scores[row, size:]))
        assert np.all(np.isneginf(result.log_probabilities[row, size:]))
        assert not result.lengths[row, size:].any()
    np.testing.assert_array_equal(result.lengths, (result.ids != PAD).sum(axis=-1))
    one = search(PREFIX_MODEL, SOURCES, max_length=7, beam_size=beam_size, n_best=1, **own)
    np.testing.assert_array_equal(one.ids[:, 0], result.ids[:, 0])


def test_stops_as_soon_as_no_live_beam_can_win():
    """Eos has probability 0.9 at once. What lives has 0.1, which at 20 tokens could still score
    log 0.1 / (25/6) = -0.55 and at 130 tokens log 0.1 / (135/6) = -0.10; log 0.9 is -0.105."""
    model = BigramModel({BOS: {EOS: 0.9, A: 0.1}, A: {A: 1.0}}, V)
    for limit, stops in ((20, True), (130, False)):
        limits = np.full(len(SOURCES), limit)
        result = search(model, SOURCES, limits, max_length=130, beam_size=3, length_penalty=1.0)
        assert (result.steps == 1) == stops


def test_each_sentence_is_cut_at_its_own_maximum_length():
    model = BigramModel({BOS: {A: 0.8, Z: 0.2}, A: {A: 1.0}, Z: {A: 1.0}}, V)
    limits = np.array([1, 2, 4, 9, 3])
    result = search(model, SOURCES, limits, max_length=5, beam_size=2, n_best=2)
    assert result.lengths[:, 0].tolist() == [1, 2, 4, 5, 3]
    assert trimmed(result.ids[2, 0]) == [A, A, A, A]
    assert trimmed(result.ids[2, 1]) == [Z, A, A, A]
    expected = np.log(0.8) / penalty(np.array([1, 2, 4, 5, 3]), 0.6)
    np.testing.assert_allclose(result.scores[:, 0], expected, rtol=1e-5)


def test_required_words_of_one_sentence_leave_the_others_as_they_are():
    """Also where they end early: every candidate would count towards the finished hypotheses."""
    model = PrefixModel(9)
    model.table[:, EOS] += 2.0
    sources = np.arange(4, 36, dtype="int32")[:, None]
    required_ids = np.zeros((len(sources), 2, 2), "int32")
    required_ids[0] = [[7, 8], [5, PAD]]
    options = {"max_length": 8, "beam_size": 3, "n_best": 3}
    free = search(model, sources, **options)
    result = search(model, sources, required_ids=required_ids, **options)
    np.testing.assert_array_equal(result.ids[1:], free.ids[1:])
    np.testing.assert_allclose(result.scores[1:], free.scores[1:], rtol=1e-5)
    assert has(trimmed(result.ids[0, 0]), [7, 8]) and 5 in result.ids[0, 0]


@pytest.mark.slow
def test_coverage_penalty_is_added_to_the_score_of_the_real_model():
    model = small_model()
    source_ids = inputs_of(model, batch=4)["source_ids"]
    options = {"max_length": 5, "beam_size": 3, "n_best": 3}
    result = search(model, source_ids, coverage_penalty=0.7, **options)
    bos = np.full((4, 3, 1), BOS, "int32")
    target_ids = np.concatenate([bos, result.ids[:, :, :-1]], axis=-1)
    target_ids = np.where(result.ids != model.pad_id, target_ids, model.pad_id)
    attention = to_numpy(model.source_attention(source_ids, target_ids))
    coverage = np.clip(attention.sum(axis=2), 1e-6, 1.0)
    mask = (source_ids != model.pad_id)[:, None]
    bonus = 0.7 * np.where(mask, np.log(coverage), 0.0).sum(axis=-1)
    expected = result.log_probabilities / penalty(result.lengths, 0.6) + bonus
    np.testing.assert_allclose(result.scores, expected, atol=1e-4)
