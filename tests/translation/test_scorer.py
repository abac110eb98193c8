"""Log-probabilities of pairs of strings."""

import numpy as np
import pytest
from support.fake_models import BOS, EOS, PAD
from support.small_models import small_model

from keras_transformer import Ensemble, SearchOptions, Tokenizer, Translator
from keras_transformer.errors import UserError
from keras_transformer.translation import scoring
from keras_transformer.translation.scoring import Scorer

A = 4


class Letters:
    """A tokenizer with one piece per letter: "a" is id 4."""

    pad_id, bos_id, eos_id = PAD, BOS, EOS
    frame_source, frame_target = Tokenizer.frame_source, Tokenizer.frame_target

    def encode_source(self, texts):
        assert not isinstance(texts, str)
        return [[ord(letter) - ord("a") + A for letter in text] for text in texts]

    encode_target = encode_source

    def decode_target(self, ids):
        return ["".join(chr(id - A + ord("a")) if id >= A else "?" for id in i) for i in ids]


@pytest.fixture(scope="module")
def model():
    return small_model()


def log_probability(model, source, target):
    """By the whole model, one pair alone and without padding."""
    source_ids, target_ids = (
        Letters().encode_source([source])[0],
        Letters().encode_source([target])[0],
    )
    inputs = {
        "source_ids": np.array([[*source_ids, EOS]]),
        "target_ids": np.array([[BOS, *target_ids]]),
    }
    logits = np.asarray(model.predict(inputs, verbose=0), "float64")[0]
    logits -= np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return sum(row[label] for row, label in zip(logits, [*target_ids, EOS], strict=True))


@pytest.mark.slow
def test_scores_are_those_of_each_pair_alone(model):
    sources, targets = ["abc", "b", " dcbaabcd", "", "e"], ["ab", "cde", "abcdabcd", "c", ""]
    scores = Scorer(model, Letters(), tokens_per_batch=16).score(sources, targets)
    assert [score.length for score in scores] == [len(target) + 1 for target in targets]
    expected = [
        log_probability(model, source.strip(), target)
        for source, target in zip(sources, targets, strict=True)
    ]
    np.testing.assert_allclose([score.log_probability for score in scores], expected, atol=1e-4)


def test_translations_score_as_the_search_said(model):
    sentences = ["abc", "de", "hgfedcba"]
    translator = Translator(
        model, Letters(), SearchOptions(beam_size=8, length_penalty=0.0, n_best=8)
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
    for score, (_, hypothesis) in zip(Scorer(model, Letters()).score(*texts), pairs, strict=True):
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
    texts = [["a" * n for n in generator.integers(0, 11, 300)] for _ in range(2)]
    done = []
    assert len(Scorer(model, Letters(), tokens_per_batch=64).score(*texts, done.append)) == 300
    assert sum(done) == 300
    assert shapes == {(8, 8), (4, 11)}


def test_nothing_has_no_scores(model):
    assert Scorer(model, Letters()).score([], []) == []


def test_mistakes_are_named(model):
    with pytest.raises(
        UserError, match="a target must have at most 10 pieces. Received: 11 pieces"
    ):
        Scorer(model, Letters()).score(["a", "b"], ["a", "b" * 11])
    with pytest.raises(TypeError, match="`translations` must be a list of strings. Received: 'ab'"):
        Scorer(model, Letters()).score(["a", "b"], "ab")
    with pytest.raises(ValueError, match="Received: 1 sentences, 2 translations"):
        Scorer(model, Letters()).score(["a"], ["a", "b"])


def test_tokens_sum_to_the_score(model):
    scorer = Scorer(model, Letters())
    pairs = ["abc", "b"], ["ab", "cde"]
    tokens, scores = scorer.token_log_probabilities(*pairs), scorer.score(*pairs)
    assert [len(of_pair) for of_pair in tokens] == [3, 4]
    expected = [score.log_probability for score in scores]
    np.testing.assert_allclose([sum(of_pair) for of_pair in tokens], expected, rtol=1e-5)


def test_an_ensemble_is_refused(model):
    with pytest.raises(ValueError, match="single Keras model.*Received: Ensemble"):
        Scorer(Ensemble([model, model]), Letters())
