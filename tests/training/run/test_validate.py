"""Validation sentences are translated, scored and shown."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from support import tiny_run
from support.attention_examples import attention_example

from keras_transformer.runs.run import Run
from keras_transformer.training.run import validate as validate_module
from keras_transformer.training.run.validate import TranslationValidation


def split(texts):
    return [text.split() for text in texts]


WORDS = SimpleNamespace(encode_source=split, encode_target=split)


@pytest.fixture
def run(tmp_path):
    tiny_run.write_text(tmp_path)
    (tmp_path / "text.en").write_text("one | two\nthree\nfour\n")
    (tmp_path / "text.de").write_text("eins zwei drei vier fünf\nsechs sieben acht neun\nzehn\n")
    return Run.create(tmp_path / "run", tiny_run.recipe_for(tmp_path))


def validate(translate, run, monkeypatch, attention=lambda *_: attention_example()):
    """With a translator that knows the answers, or does not."""
    translator = SimpleNamespace(translate=translate)
    monkeypatch.setattr(validate_module, "Translator", lambda *_, **__: translator)
    monkeypatch.setattr(validate_module, "translation_attention", attention)
    trainer = SimpleNamespace(
        model=None,
        evaluate=lambda *_, **__: {"loss": 99.0, "perplexity": math.inf},
        perplexity=SimpleNamespace(crossentropy=lambda: 500.0),
    )
    batch = ({"source_ids": np.zeros((1, 1), "int32")}, np.zeros((1, 1), "int32"))
    return TranslationValidation(run, WORDS, [batch])(trainer, 7)


def test_perfect_translations_score_100_and_only_the_first_sentences_count(run, monkeypatch):
    answers = {"one | two": "eins zwei drei vier fünf", "three": "sechs sieben acht neun"}
    found = validate(lambda sentences: [answers[each] for each in sentences], run, monkeypatch)
    assert found["bleu"] == pytest.approx(100)
    assert found["loss"] == 500  # that of the perplexity, even if it is infinite


def test_shows_source_reference_and_translation(run, monkeypatch):
    text = validate(lambda sentences: ["a*b", "_`\\"], run, monkeypatch)["translations"]
    assert text.splitlines()[2:] == [
        "| one &#124; two | eins zwei drei vier fünf | a&#42;b |",
        "| three | sechs sieben acht neun | &#95;&#96;&#92; |",
    ]


def test_shows_the_attention_of_the_first_pair(run, monkeypatch):
    shown = []

    def attention(_, *pair):
        shown.append(pair)
        return attention_example(["a", "|"], ["b", "c", "d"])

    found = validate(lambda sentences: ["a", "b"], run, monkeypatch, attention)
    assert shown == [("one | two", "eins zwei drei vier fünf")]
    assert found["attention/tokens"].splitlines()[-1] == "| cross | b c d | a &#124; |"
    assert found["attention/cross"].shape == (2 * (8 * 3 + 1), 3 * (8 * 2 + 1), 3)
