"""Metrics with the methods that sacrebleu calls."""

import sys
from types import SimpleNamespace

import pytest
from support.fake_comet import fake_comet

from keras_transformer.errors import UserError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import new_metric


@pytest.mark.parametrize("tokenize, warns", [("none", False), ("13a", True)])
def test_tokenized_text_is_a_surprise_only_where_bleu_tokenizes(tokenize, warns, caplog):
    sentences = ("tokenized text .",) * 101
    metric = new_metric("bleu", tokenize=tokenize)
    metric._extract_corpus_statistics(sentences, (sentences,))
    assert ("detokenize" in caplog.text) == warns


def test_a_missing_tokenizer_is_told_in_one_line(monkeypatch):
    def missing(*_, **settings):
        raise RuntimeError("Japanese tokenization requires extra dependencies")

    monkeypatch.setattr(metrics, "BLEU", missing)
    with pytest.raises(UserError, match="^tokenize=ja-mecab: Japanese"):
        new_metric("bleu", tokenize="ja-mecab")


def test_what_comet_lacks_is_told(monkeypatch):
    given = {"sources": ("one",), "comet_model": "no/such-model"}
    monkeypatch.setitem(sys.modules, "comet", None)  # as if it were not installed
    with pytest.raises(
        UserError, match=r"In a new environment: .*keras3-transformer\[torch,comet\]"
    ):
        new_metric("comet", **given)
    fake_comet(monkeypatch)
    with pytest.raises(UserError, match="COMET model no/such-model cannot be loaded: .*not supp"):
        new_metric("comet", **given)
    with pytest.raises(UserError, match="needs the source sentences and a COMET model"):
        new_metric("comet", comet_model="Unbabel/wmt22-comet-da")
    monkeypatch.setitem(sys.modules, "comet", SimpleNamespace())  # another package of this name
    with pytest.raises(UserError, match="cannot be loaded: "):
        new_metric("comet", **given)
