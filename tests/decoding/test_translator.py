"""Strings in, strings out."""

import numpy as np
import pytest
from fake_models import BOS, EOS, PAD, BigramModel, PrefixModel
from keras import ops

from keras_transformer.decoding import Translator

A = 4


class Digits:
    """A tokenizer with one piece per character: digit d is id 4 + d."""

    pad_id, bos_id, eos_id = PAD, BOS, EOS

    def encode_source(self, sentences):
        return [[A + int(digit) for digit in sentence] for sentence in sentences]

    def decode_target(self, ids):
        return ["".join("?" if i < A else str(i - A) for i in pieces) for pieces in ids]


class Copier:
    """Repeats the source, one token a step; for the shapes it was asked for see `shapes`."""

    max_length = 32
    variables = ()

    def __init__(self):
        self.shapes = []

    def init_cache(self, source_ids, max_length, beam_size=1):
        self.shapes.append((*source_ids.shape, max_length))
        return {"beam": {}, "sentence": source_ids}

    def step(self, token_ids, cache, position):
        source = cache["sentence"]
        following = ops.take(source, ops.minimum(position, source.shape[1] - 1), axis=1)
        logits = 9.0 * ops.one_hot(following, 14)[:, None, :]
        return logits + ops.zeros((1, token_ids.shape[1], 1)), cache


def test_order_of_sentences_is_kept():
    sentences = ["3", "141592653", "27", "", "1" * 20, "8"]
    assert Translator(Copier(), Digits(), beam_size=2).translate(sentences) == sentences


def test_blank_sentences_do_not_touch_the_model():
    model = Copier()
    assert Translator(model, Digits()).translate(["", "  ", "\t"]) == ["", "", ""]
    assert Translator(model, Digits()).translate([]) == []
    assert model.shapes == []


def test_long_lists_go_in_batches_of_few_shapes():
    model = Copier()
    translator = Translator(model, Digits(), beam_size=1, tokens_per_batch=32)
    sentences = [str(n) for n in range(19)]
    assert translator.translate([*sentences, "1" * 14]) == [*sentences, "1" * 14]
    # 2 of width 16, then 4 of width 8 at a time, and 2 rows for what is left. 50 more than the
    # source would be longer than the model allows, 32.
    assert set(model.shapes) == {(2, 16, 32), (4, 8, 32), (2, 8, 32)}


def test_sentences_longer_than_the_model_allows_are_cut_with_a_warning():
    translator = Translator(Copier(), Digits(), beam_size=1)
    with pytest.warns(UserWarning, match="Sentence 2 has 40 pieces; only the first 31"):
        assert translator.translate(["7", "2" * 40]) == ["7", "2" * 31]


def test_a_translation_does_not_depend_on_its_batch():
    """Nor does its greatest length: the model never ends a sentence of its own accord."""
    model = BigramModel({BOS: {A: 1.0}, A: {A: 1.0}}, 14)
    translator = Translator(model, Digits(), beam_size=1)
    translations = translator.translate(["1", "2" * 13])
    assert [len(text) for text in translations] == [2 + 50, 14 + 50]


def test_max_length_counts_eos():
    short = Translator(Copier(), Digits(), beam_size=1, max_length=3)
    (complete,), (cut,) = short.translate_nbest(["12", "1234"])
    assert (complete.text, complete.length) == ("12", 3)
    assert (cut.text, cut.length) == ("123", 3)


def test_hypotheses_are_described():
    probabilities = {BOS: {A: 0.6, EOS: 0.4}, A: {EOS: 0.9, A: 0.1}}
    translator = Translator(BigramModel(probabilities, 14), Digits(), beam_size=2)
    ((best, second), blank) = translator.translate_nbest(["5", ""], n_best=2)
    assert (best.text, best.ids, best.length) == ("0", (A,), 2)
    np.testing.assert_allclose(best.log_probability, np.log(0.6 * 0.9), rtol=1e-5)
    np.testing.assert_allclose(best.score, np.log(0.6 * 0.9) / (7 / 6) ** 0.6, rtol=1e-5)
    assert (second.text, second.ids, second.length) == ("", (), 1)
    np.testing.assert_allclose(second.score, np.log(0.4), rtol=1e-5)
    assert [(hypothesis.text, hypothesis.score) for hypothesis in blank] == [("", 0.0)] * 2


def test_best_of_n_best_is_the_translation():
    translator = Translator(PrefixModel(14), Digits(), beam_size=3, max_length=6)
    sentences = ["1", "22", "333"]
    best = [hypotheses[0].text for hypotheses in translator.translate_nbest(sentences, n_best=3)]
    assert translator.translate(sentences) == best


def test_progress_counts_sentences(capsys):
    Translator(Copier(), Digits(), beam_size=1).translate(["1", "", "22"], progress=True)
    assert "3/3" in capsys.readouterr().err
    Translator(Copier(), Digits(), beam_size=1).translate(["1"])
    assert capsys.readouterr().err == ""


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="must be a list of strings. Received: '12'"):
        Translator(Copier(), Digits()).translate("12")
    with pytest.raises(ValueError, match="Received: max_length=33"):
        Translator(Copier(), Digits(), max_length=33)
    with pytest.raises(ValueError, match="Received: n_best=5, beam_size=4"):
        Translator(Copier(), Digits()).translate_nbest(["1"], n_best=5)
