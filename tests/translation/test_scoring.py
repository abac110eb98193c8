"""Scores of given pairs against NumPy and against what search says of its own translations."""

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.fake_models import BOS, EOS, PAD
from support.searching import beam_search
from support.small_models import V, inputs_of, new_model, small_model

from keras_transformer import compile_function
from keras_transformer.translation.scoring import PairScores, score_pairs

SOURCES = np.array([[7, 9, 5, 3], [11, 3, PAD, PAD], [12, 8, 3, PAD]], "int32")


def score(model, source_ids, target_ids, labels, **options):
    scores = compile_function(score_pairs, model)(source_ids, target_ids, labels, **options)
    return PairScores(*map(to_numpy, scores))


def labels_of(target_ids, pad_id=PAD):
    """Other real tokens in the same places."""
    labels = np.random.default_rng(3).choice(np.delete(np.arange(V), pad_id), target_ids.shape)
    return np.where(target_ids == pad_id, pad_id, labels).astype("int32")


@pytest.mark.parametrize("variant", ["sinusoidal", "all_at_once"])
def test_scores_are_the_log_softmax_of_the_logits(variant):
    model = small_model(variant)
    inputs = inputs_of(model)
    labels = labels_of(inputs["target_ids"], model.pad_id)
    found = score(model, *inputs.values(), labels)
    logits = to_numpy(model(inputs)).astype("float64")
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    expected = np.log(np.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0])
    expected[labels == model.pad_id] = 0
    assert (labels == model.pad_id).any()
    np.testing.assert_allclose(found.token_log_probabilities, expected, atol=1e-5)
    np.testing.assert_allclose(found.log_probabilities, expected.sum(axis=-1), atol=1e-5)
    np.testing.assert_array_equal(found.lengths, (labels != model.pad_id).sum(axis=-1))


def test_a_translation_scores_what_search_says():
    model = new_model(num_layers=1)
    result = beam_search(model, SOURCES, np.array([9, 2, 5]), max_length=9, beam_size=1)
    ids, lengths = to_numpy(result.ids)[:, 0], to_numpy(result.lengths)[:, 0]
    assert lengths.min() < lengths.max()
    # Where a label is padding, it does not matter what `target_ids` have.
    target_ids = np.concatenate([np.full((3, 1), BOS), ids[:, :-1]], axis=1)
    found = score(model, SOURCES, target_ids, ids)
    expected = to_numpy(result.log_probabilities)[:, 0]
    np.testing.assert_allclose(found.log_probabilities, expected, rtol=1e-5)
    np.testing.assert_array_equal(found.lengths, lengths)


def test_more_padding_changes_nothing():
    model = small_model()
    inputs = inputs_of(model)
    labels = labels_of(inputs["target_ids"])
    narrow = score(model, *inputs.values(), labels)
    wide = score(model, *(np.pad(x, ((0, 0), (0, 3))) for x in (*inputs.values(), labels)))
    np.testing.assert_allclose(wide.log_probabilities, narrow.log_probabilities, atol=1e-5)
    assert (wide.token_log_probabilities[:, -3:] == 0).all()


class HalfPrecisionModel:
    """Gives the same bfloat16 logits to every sentence."""

    variables = ()

    def __init__(self):
        logits = 5 * np.random.default_rng(0).normal(size=(1, V))
        self.logits = ops.cast(logits, "bfloat16")

    def __call__(self, inputs, training):
        return ops.zeros((*ops.shape(inputs["target_ids"]), 1), "bfloat16") + self.logits


def test_labels_that_are_not_those_of_the_target_are_refused():
    model = new_model(num_layers=1)
    inputs = inputs_of(model)
    labels = labels_of(inputs["target_ids"])
    for few in (labels[:, :1], labels[:1], labels[..., None]):
        with pytest.raises(ValueError, match="`labels` must have the shape .* of the target ids"):
            score_pairs(model, *inputs.values(), few)
    with pytest.raises(ValueError, match="`labels` must be integers. Received: dtype=float64"):
        score_pairs(model, *inputs.values(), labels + 0.7)


@pytest.mark.parametrize("label", [-5, V])
def test_a_label_outside_the_vocabulary_gives_nan(label):
    model = new_model(num_layers=1)
    inputs = inputs_of(model)
    labels = labels_of(inputs["target_ids"])
    labels[1, 0] = label
    found = to_numpy(score_pairs(model, *inputs.values(), labels).log_probabilities)
    assert np.isnan(found).tolist() == [row == 1 for row in range(len(labels))]


def test_half_precision_is_normalized_in_float32():
    model = HalfPrecisionModel()
    target_ids = np.full((2, 3), BOS)
    found = score(model, SOURCES[:2], target_ids, np.full((2, 3), EOS))
    assert {x.dtype.name for x in found} == {"float32", "int32"}
    logits = to_numpy(ops.cast(model.logits, "float32")).astype("float64")[0]
    expected = logits[EOS] - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(found.token_log_probabilities, np.full((2, 3), expected), rtol=1e-5)


@pytest.mark.slow
def test_dropout_is_off():
    model = new_model(num_layers=1, dropout_rate=0.5)
    inputs = inputs_of(model)
    labels = np.full_like(inputs["target_ids"], EOS)
    first, second = (score(model, *inputs.values(), labels) for _ in range(2))
    np.testing.assert_array_equal(first.log_probabilities, second.log_probabilities)
