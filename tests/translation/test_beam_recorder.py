"""The recorded hypotheses of a beam search are those of the search."""

import numpy as np
import pytest
from support.fake_models import BOS, EOS, PAD, BigramModel, PrefixModel
from support.searching import eagerly, quick_search

from keras_transformer import SearchOptions
from keras_transformer.decoding import Request
from keras_transformer.decoding.decoding_loop import make_strategy
from keras_transformer.translation.beam_recorder import record
from keras_transformer.translation.beam_tree import BeamTree

V, MAX_LENGTH = 9, 7
MODEL = PrefixModel(V)
PIECES = ["</s>" if number == EOS else f"▁{number}" for number in range(V)]
OPTIONS = [
    SearchOptions(beam_size=3, n_best=3),
    SearchOptions(beam_size=3, n_best=1, length_penalty=2.0),
    SearchOptions(beam_size=1),
    SearchOptions(beam_size=4, n_best=4, num_beam_groups=2, diversity_penalty=0.5),
    SearchOptions(beam_size=2, n_best=2, no_repeat_ngram_size=1, max_length=4),
]


def trimmed(ids):
    return [int(token) for token in ids if token != PAD]


def tree_of(model, source, options, max_length=MAX_LENGTH):
    request = Request(np.array([source], "int32"))
    nodes, result = record(model, request, max_length, make_strategy(model, options), PIECES)
    return BeamTree("", nodes, (), options), result


@pytest.mark.parametrize(
    "options",
    OPTIONS,
    ids=lambda options: str(options.model_dump(exclude_defaults=True)),
)
def test_results_are_those_of_the_search(options):
    with eagerly():
        for source in ([7, 3], [20, 3], [36, 3]):
            tree, result = tree_of(MODEL, source, options)
            expected = quick_search(MODEL, np.array([source], "int32"), MAX_LENGTH, options)
            np.testing.assert_array_equal(result.ids, expected.ids)
            np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)
            nodes = sorted((x for x in tree.nodes if x.result), key=lambda node: node.result)
            found = [[x.token_id for x in tree.path(node)] for node in nodes]
            assert found == [trimmed(ids) for ids in expected.ids[0]]
            scores = [node.score for node in nodes]
            np.testing.assert_allclose(scores, expected.scores[0], rtol=1e-6)


def test_log_probabilities_are_those_of_the_model():
    tree, _ = tree_of(MODEL, [7, 3], OPTIONS[0])
    for node in tree.nodes[1:]:
        *prefix, token = [x.token_id for x in tree.path(node)]
        expected = MODEL.log_probabilities([7, 3], prefix)[token]
        assert node.token_log_probability == pytest.approx(expected, abs=1e-4)
        parent = tree.nodes[node.parent]
        assert parent.outcome == "continued" and parent.length == node.length - 1
        total = parent.log_probability + node.token_log_probability
        assert node.log_probability == pytest.approx(total, abs=1e-5)


A, Z = 4, 5
GARDEN_PATH = {BOS: {A: 0.6, Z: 0.4}, A: {A: 0.5, EOS: 0.3, Z: 0.2}, Z: {EOS: 0.9, A: 0.1}}


def test_reasons_tell_why_a_hypothesis_won_or_lost():
    model = BigramModel(GARDEN_PATH, 6)
    tree, _ = tree_of(model, [7, 3], SearchOptions(beam_size=2, length_penalty=0.0), max_length=4)
    reasons = {tuple(x.token_id for x in tree.path(node)): node.reason for node in tree.nodes}
    outcomes = {tuple(x.token_id for x in tree.path(node)): node.outcome for node in tree.nodes}
    assert reasons[Z, EOS] == "the best score"
    assert outcomes[A, A] == "dropped"  # 0.3 < 0.36, the score of Z eos
    assert reasons[A, A] == "the search ended: the score could become at most -1.204"
    assert reasons[A, EOS] == "rank 3 of the step, but there are 2 beams"
    assert tree.text(tree.nodes[0]) == ""
    (best,) = (node for node in tree.nodes if node.result == 1)
    assert tree.text(best) == str(Z)
