"""The export to CTranslate2: what is written is compared, or not there at all."""

import numpy as np
import pytest
from support.contract import randomize
from support.parallel_text import LOSSLESS_TARGET, SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import SearchOptions, Translator
from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.formats import ctranslate2 as writer, export_ctranslate2
from keras_transformer.formats.ctranslate2_translator import CTranslate2Translator
from keras_transformer.models import Transformer

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

pytestmark = pytest.mark.once
V = 60
TEXTS = [source for source, _ in SENTENCES]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, **LOSSLESS_TARGET)


def new_model(**arguments):
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 19}
    model = Transformer(V, **{**sizes, **arguments})
    randomize(model)
    return model


@pytest.mark.parametrize("source_eos", [True, False])
def test_prefixes_and_a_missing_source_eos_are_exported(source_eos, tokenizer, tmp_path):
    prefixes = {"source_prefix": ["b"], "target_prefix": ["▁", "s"], "source_eos": source_eos}
    framed = Tokenizer(tokenizer.source_model, **prefixes)
    model, options = new_model(), SearchOptions(beam_size=2, n_best=2, length_penalty=0.0)
    found = export_ctranslate2(model, framed, tmp_path / "model", None, TEXTS)
    assert found.identical == len(TEXTS)
    translators = (
        Translator(model, framed, options),
        CTranslate2Translator(tmp_path / "model", options),
    )
    expected, found = (x.translate_nbest(TEXTS) for x in translators)
    for ours, theirs in zip(expected, found, strict=True):
        assert [x.ids for x in theirs] == [x.ids for x in ours]
        between = [second.score - first.score for first, second in (ours, theirs)]
        np.testing.assert_allclose(*between, atol=1e-3)  # CTranslate2 does not count the prefix.


def test_every_sentence_is_compared_but_spaces_around_it_are_not(tokenizer, tmp_path):
    sentences = ["", " \t ", *TEXTS, f"{TEXTS[0]}\t\t", "漢"]
    found = export_ctranslate2(new_model(), tokenizer, tmp_path / "model", None, sentences)
    assert found.identical == found.sentences == len(sentences)
    assert Tokenizer.load(tmp_path / "model" / "tokenizer").fingerprint == tokenizer.fingerprint


def test_sentences_longer_than_the_default_of_ctranslate2_are_compared(tokenizer, tmp_path):
    model = new_model(max_length=1_300, position_encoding="none", norm_first=True)
    make_token_likelier(model, tokenizer.eos_id, 3.0)
    sentence = "a " * 1_050 + " ".join(TEXTS)
    assert len(tokenizer.encode_source([sentence])[0]) > 1_100
    found = export_ctranslate2(model, tokenizer, tmp_path / "model", None, [sentence])
    assert found.largest_difference < 0.1  # 0.2 if it reads 1,024 pieces


def test_an_export_that_translates_otherwise_is_not_kept(tokenizer, tmp_path, monkeypatch):
    table = writer.position_table
    monkeypatch.setattr(writer, "position_table", lambda model: 1 - table(model))
    with pytest.raises(UserError, match="the CTranslate2 model translates "):
        export_ctranslate2(new_model(), tokenizer, tmp_path / "model", None, TEXTS)
    assert list(tmp_path.iterdir()) == []
