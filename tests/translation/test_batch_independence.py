"""A sentence gets the translation that it has alone, whatever is translated with it, and how."""

import keras
import numpy as np
import pytest
from support.digits import Copier, new_translator
from support.fake_models import EOS, PrefixModel
from support.searching import eagerly

from keras_transformer import SamplingOptions, SearchOptions, Tokenizer
from keras_transformer.translation.translator import Translator

V, SEED = 13, 5


class GrowingModel(PrefixModel):
    """Has stages, and sentences that end: eos is probable."""

    def __init__(self):
        super().__init__(V)
        self.table[:, EOS] += 2
        self.max_length = 12

    def extend_cache(self, cache, max_length):
        return cache


SENTENCES = ["abc de. f", "", "fed", "cba d. abc de f. fed cba", "a", "dd ee"]
WORDS = {
    "prefixes": ["ab", "", "c", "f", "", "d"],
    "forbidden": [["d"], ["a"], [], ["ab", "c"], [], ["e", "f"]],
    "required": [[], [], ["fe"], [], ["b"], []],
}
GROUPS = {"num_beam_groups": 2, "diversity_penalty": 0.3, "max_length": 10}


@pytest.mark.parametrize(
    ("options", "words", "tokens_per_batch"),
    [
        (SearchOptions(beam_size=3, n_best=2, repetition_penalty=1.5), (), 16),
        (SearchOptions(beam_size=4, n_best=4, length_penalty=3.0, **GROUPS), ["forbidden"], 64),
        (SearchOptions(beam_size=2, no_repeat_ngram_size=2, min_length=3), ["prefixes"], 64),
        (SearchOptions(beam_size=6, length_penalty_form="power"), [*WORDS], 1024),
        (SamplingOptions(num_samples=3, temperature=2.0, top_k=3, min_length=6), (), 16),
        (SamplingOptions(num_samples=2, top_p=0.9, repetition_penalty=0.7), (), 1024),
    ],
)
def test_a_line_is_translated_as_it_is_alone(options, words, tokens_per_batch):
    """The Translator groups lines into batches by length, and splits lines."""
    model, is_sampled = GrowingModel(), isinstance(options, SamplingOptions)
    tokenizer = Tokenizer.train([("abc de. f", "fed. cba d")] * 9, V, model_type="bpe")
    search = None if is_sampled else options

    def translated(translator, numbers):
        sentences = [SENTENCES[number] for number in numbers]
        if is_sampled:
            return translator.sample(sentences, options, SEED, numbers[0])
        given = {name: [WORDS[name][number] for number in numbers] for name in words}
        return translator.translate_nbest(sentences, **given)

    numbers = range(len(SENTENCES))
    with eagerly():
        whole = translated(Translator(model, tokenizer, search, "split", tokens_per_batch), numbers)
        each = Translator(model, tokenizer, search)
        alone = [translated(each, [number])[0] for number in numbers]
    for found, expected in zip(whole, alone, strict=True):
        rows = ([(x.text, x.ids, x.length) for x in row] for row in (found, expected))
        assert next(rows) == next(rows)
        for name in ("score", "log_probability"):
            scores = ([getattr(x, name) for x in row] for row in (found, expected))
            np.testing.assert_allclose(*scores, atol=1e-4, rtol=1e-5)


@pytest.mark.each_backend
def test_a_translator_of_a_server_compiles_all_that_it_needs():
    model, lines = Copier(), ["1" * n for n in range(1, 31)] + ["2" * 40, ""]
    lines = [line + "3" for line in lines]
    prepared = new_translator(model, tokens_per_batch=128, beam_size=2, n_best=2)
    prepared.prepare(16, max_length=20)
    traced = len(model.shapes)
    for texts in (lines[:1], lines[:3], lines[-16:]):
        assert prepared.translate(texts) == texts
        found = prepared.translate_nbest(texts, alignments=True)
        assert [x.text for x, _ in found] == texts
    is_compiled = keras.config.backend() != "torch"
    assert (len(model.shapes) == traced) == is_compiled
