"""Strings in, strings out."""

import queue

import numpy as np
import pytest
from support.digits import Copier, Digits, new_translator
from support.fake_models import BOS, EOS, BigramModel, PrefixModel

from keras_transformer import SamplingOptions, SearchOptions
from keras_transformer.translation.hypothesis import Hypothesis
from keras_transformer.translation.translator import Translator

A = 4


def test_blank_sentences_do_not_touch_the_model():
    model = Copier()
    assert new_translator(model).translate(["", "  ", "\t"]) == ["", "", ""]
    assert new_translator(model).translate([]) == []
    assert model.shapes == []


def test_sentences_longer_than_the_model_allows_are_split_and_joined():
    translator = new_translator(Copier(), beam_size=2)
    long = "1" * 20 + ". " + "2" * 10 + " " + "3" * 11 + " " + "4" * 12
    ((whole,), (short,)) = translator.translate_nbest([long, "7"], alignments=True)
    assert whole.text == " ".join(["1" * 20, "2" * 10, "3" * 11 + "4" * 12])
    assert short.text == "7"
    (parts) = translator.translate_nbest(whole.text.split())
    assert whole.length == sum(part.length for (part,) in parts)
    np.testing.assert_allclose(whole.score, sum(part.score for (part,) in parts), rtol=1e-6)


def test_max_length_counts_eos():
    short = new_translator(Copier(), beam_size=1, max_length=3)
    (complete,), (cut,) = short.translate_nbest(["12", "1234"])
    assert (complete.text, complete.length) == ("12", 3)
    assert (cut.text, cut.length) == ("123", 3)


def test_hypotheses_are_described():
    probabilities = {BOS: {A: 0.6, EOS: 0.4}, A: {EOS: 0.9, A: 0.1}}
    translator = new_translator(BigramModel(probabilities, 14), beam_size=2, n_best=2)
    ((best, second), blank) = translator.translate_nbest(["5", ""])
    assert (best.text, best.ids, best.length) == ("0", (A,), 2)
    np.testing.assert_allclose(best.log_probability, np.log(0.6 * 0.9), rtol=1e-5)
    np.testing.assert_allclose(best.score, np.log(0.6 * 0.9) / (7 / 6) ** 0.6, rtol=1e-5)
    assert (second.text, second.ids, second.length) == ("", (), 1)
    np.testing.assert_allclose(second.score, np.log(0.4), rtol=1e-5)
    assert [(hypothesis.text, hypothesis.score) for hypothesis in blank] == [
        ("", 0.0),
        ("", -np.inf),
    ]


def test_progress_counts_sentences(capsys, notebook):
    new_translator(Copier(), beam_size=1).translate(["1", "", "22"], progress=True)
    assert "3/3" in capsys.readouterr().err
    new_translator(Copier(), beam_size=1).translate(["1"])
    assert capsys.readouterr().err == ""


class SpacedDigits(Digits):
    def decode_target(self, ids):
        return [" ".join(text) for text in super().decode_target(ids)]


def test_alignments_are_those_of_the_attention():
    translator = Translator(Copier(), SpacedDigits(), SearchOptions(beam_size=2, n_best=2))
    ((best, second), blank) = translator.translate_nbest(["5 6 7", ""], alignments=True)
    assert (best.text, best.alignment) == ("5 6 7", ((0, 0), (1, 1), (2, 2)))
    assert len(second.alignment) >= 1
    assert [hypothesis.alignment for hypothesis in blank] == [(), ()]
    assert translator.translate_nbest(["5"])[0][0].alignment is None


def test_alignments_count_the_halves_of_a_split_word_as_one_word_of_the_source():
    model = Copier()
    model.max_length = 8
    translator = Translator(model, SpacedDigits(), SearchOptions(beam_size=1))
    ((found,),) = translator.translate_nbest(["1 2345678901 2 3"], alignments=True)
    assert found.text == "1 2 3 4 5 67 8 9 0 1 2 3"  # No space is added inside a word.
    pairs = [(0, 0), *((1, target) for target in range(1, 10)), (2, 10), (3, 11)]
    assert found.alignment == tuple(pairs)


def test_samples_depend_on_seed_and_index_alone():
    translator = new_translator(PrefixModel(14), max_length=8, tokens_per_batch=16)
    sentences = ["1", "", "22", "333", "1"]
    options = SamplingOptions(num_samples=3, max_length=8)
    samples = translator.sample(sentences, options, seed=7)
    assert [len(of_sentence) for of_sentence in samples] == [3] * 5
    assert samples[0] != samples[4]  # The same sentence, but another index.
    assert samples[1][0].text == ""
    assert translator.sample(sentences[2:4], options, seed=7, first_index=2) == samples[2:4]
    assert translator.sample(sentences, options, seed=8) != samples


def test_parts_of_a_sentence_are_sampled_apart():
    model = PrefixModel(14)
    model.max_length = 8
    translator = new_translator(model)
    ((joined,),) = translator.sample(["111111 111111"])
    first, second = joined.text.split(" ")
    assert first != second


def test_minimum_bayes_risk_chooses_among_the_samples():
    model = BigramModel({BOS: {5: 0.6, 6: 0.4}, 5: {EOS: 1.0}, 6: {EOS: 1.0}}, 14)
    translator = new_translator(model, beam_size=2)
    options = SamplingOptions(num_samples=16)
    samples = [x.text for x in translator.sample(["7"], options, seed=3)[0]]
    ((best,),) = translator.translate_mbr(["7"], options, seed=3)
    assert best.text == max(set(samples), key=samples.count)
    assert best.score == pytest.approx(100 * samples.count(best.text) / 16)


def test_minimum_bayes_risk_passes_over_samples_that_came_to_nothing(monkeypatch):
    dead = Hypothesis("", (), -np.inf, -np.inf, 0)
    samples = [dead, dead, Hypothesis("12", (5, 6), -1.0, -1.0, 3)]
    translator = new_translator(Copier())
    monkeypatch.setattr(translator, "sample", lambda *_, **__: [samples, [dead]])
    assert [best.text for (best,) in translator.translate_mbr(["1", "2"])] == ["12", ""]


def test_a_stream_is_answered_line_by_line_in_order():
    lines = queue.Queue()
    stream = new_translator(Copier(), beam_size=1).stream(iter(lines.get, None))
    for line in ("12", "", "3"):
        lines.put(line)
        assert next(stream) == line  # Would hang if it waited for more.
    for line in ("4", "56", None):
        lines.put(line)
    assert list(stream) == ["4", "56"]


def test_a_search_that_cannot_meet_the_constraints_is_refused():
    translator = new_translator(PrefixModel(14), beam_size=4, max_length=3)
    assert {"1", "2"} <= set(translator.translate(["0"], required=[["1", "2"]])[0])
    with pytest.raises(
        ValueError, match="no translation that meets .* Received: required=.*'12', '34'"
    ):
        translator.translate(["0", "0"], required=[["1"], ["12", "34"]])
    repeating = new_translator(PrefixModel(14), beam_size=4, no_repeat_ngram_size=1)
    assert repeating.translate(["0"], prefixes=["11"])[0][:2] == "11"  # A prefix is as it is.


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"sentences": "12"}, "must be a list of strings. Received: '12'"),
        ({"max_length": 33}, {"sentences": ["1"]}, "Received: max_length=33"),
    ],
)
def test_mistakes_are_named(options, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        new_translator(Copier(), **options).translate(**arguments)
