"""Scores of given pairs against NumPy and against what search says of its own translations."""

import numpy as np
import pytest
from keras import ops
from support.cases import once
from support.contract import to_numpy
from support.digits import Digits
from support.fake_models import BOS, EOS, PAD
from support.small_models import V, inputs_of, new_model, small_model

from keras_transformer import SearchOptions, Translator, compile_function
from keras_transformer.errors import UserError
from keras_transformer.translation import scoring
from keras_transformer.translation.scoring import PairScores, Scorer, score_pairs

SOURCES = np.array([[7, 9, 5, 3], [11, 3, PAD, PAD], [12, 8, 3, PAD]], "int32")


def score(model, source_ids, target_ids, labels, **options):
    scores = compile_function(score_pairs, model)(source_ids, target_ids, labels, **options)
    return PairScores(*map(to_numpy, scores))


def labels_of(target_ids, pad_id=PAD):
    """Other real tokens in the same places."""
    labels = np.random.default_rng(3).choice(np.delete(np.arange(V), pad_id), target_ids.shape)
    return np.where(target_ids == pad_id, pad_id, labels).astype("int32")


@pytest.mark.each_backend
@pytest.mark.parametrize("variant", ["all_at_once", *once("sinusoidal")])
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


class HalfPrecisionModel:
    """Gives the same bfloat16 logits to every sentence."""

    variables = ()

    def __init__(self):
        logits = 5 * np.random.default_rng(0).normal(size=(1, V))
        self.logits = ops.cast(logits, "bfloat16")

    def __call__(self, inputs, training):
        return ops.zeros((*ops.shape(inputs["target_ids"]), 1), "bfloat16") + self.logits


@pytest.mark.each_backend
@pytest.mark.parametrize("label", [-5, V])
def test_a_label_outside_the_vocabulary_gives_nan(label):
    model = new_model(num_layers=1)
    inputs = inputs_of(model)
    labels = labels_of(inputs["target_ids"])
    labels[1, 0] = label
    found = to_numpy(score_pairs(model, *inputs.values(), labels).log_probabilities)
    assert np.isnan(found).tolist() == [row == 1 for row in range(len(labels))]


@pytest.mark.each_backend
def test_half_precision_is_normalized_in_float32():
    model = HalfPrecisionModel()
    target_ids = np.full((2, 3), BOS)
    found = score(model, SOURCES[:2], target_ids, np.full((2, 3), EOS))
    assert {x.dtype.name for x in found} == {"float32", "int32"}
    logits = to_numpy(ops.cast(model.logits, "float32")).astype("float64")[0]
    expected = logits[EOS] - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(found.token_log_probabilities, np.full((2, 3), expected), rtol=1e-5)


# --- Of strings ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return small_model("two_layers")


def test_translations_score_as_the_search_said(model):
    sentences = ["012", "34", "76543210"]
    translator = Translator(
        model, Digits(), SearchOptions(beam_size=8, length_penalty=0.0, n_best=8)
    )
    found = translator.translate_nbest(sentences)
    pairs = [
        (sentence, hypothesis)
        for sentence, hypotheses in zip(sentences, found, strict=True)
        for hypothesis in hypotheses
        if hypothesis.length == len(hypothesis.ids) + 1 and "?" not in hypothesis.text
    ]
    assert len(pairs) >= 3  # Those that end with eos, and whose text gives their pieces.
    texts = [[sentence for sentence, _ in pairs], [hypothesis.text for _, hypothesis in pairs]]
    for score, (_, hypothesis) in zip(Scorer(model, Digits()).score(*texts), pairs, strict=True):
        assert score.length == hypothesis.length
        np.testing.assert_allclose(score.log_probability, hypothesis.log_probability, atol=1e-4)


def test_pairs_of_any_lengths_have_few_shapes(model, monkeypatch):
    shapes = set()

    def score_pairs(model, source_ids, target_ids, labels, pad_id):
        assert source_ids.shape == target_ids.shape == labels.shape
        shapes.add(tuple(source_ids.shape))
        return [np.zeros(labels.shape), np.zeros(len(labels)), np.ones(len(labels))]

    monkeypatch.setattr(
        scoring, "compile_function", lambda f, model: lambda *a, **k: score_pairs(model, *a, **k)
    )
    generator = np.random.default_rng(3)
    texts = [["1" * n for n in generator.integers(0, 11, 300)] for _ in range(2)]
    done = []
    assert len(Scorer(model, Digits(), tokens_per_batch=64).score(*texts, done.append)) == 300
    assert sum(done) == 300
    assert shapes == {(8, 8), (4, 11)}


def test_mistakes_are_named(model):
    with pytest.raises(UserError, match="a target must have 0 to 10 pieces. Received: 11 pieces"):
        Scorer(model, Digits()).score(["1", "2"], ["1", "2" * 11])
    with pytest.raises(TypeError, match="`target texts` must be a list of strings. Received: 'ab'"):
        Scorer(model, Digits()).score(["a", "b"], "ab")
    with pytest.raises(ValueError, match="longer"):
        Scorer(model, Digits()).score(["a"], ["a", "b"])
