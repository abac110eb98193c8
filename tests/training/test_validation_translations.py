"""Validation sentences are translated, scored and shown."""

from types import SimpleNamespace

import pytest
from support import tiny_run

from keras_transformer.run import Run
from keras_transformer.training import validation_translations
from keras_transformer.training.validation_translations import ValidationTranslations


class Texts(list):
    def report_text(self, step, tag, text):
        self.append((step, tag, text))


@pytest.fixture
def run(tmp_path):
    tiny_run.write_text(tmp_path)
    (tmp_path / "text.en").write_text("one | two\nthree\nfour\n")
    (tmp_path / "text.de").write_text("eins zwei drei vier fünf\nsechs sieben acht neun\nzehn\n")
    return Run.create(tmp_path / "run", tiny_run.recipe_for(tmp_path))


def translations_by(translate, run, texts, monkeypatch):
    """With a translator that knows the answers, or does not."""
    translator = SimpleNamespace(translate=translate)
    monkeypatch.setattr(validation_translations, "Translator", lambda *_, **__: translator)
    return ValidationTranslations(None, None, run, texts)


def test_perfect_translations_score_100_and_only_the_first_sentences_count(run, monkeypatch):
    answers = {"one | two": "eins zwei drei vier fünf", "three": "sechs sieben acht neun"}
    found = translations_by(
        lambda sentences: [answers[each] for each in sentences], run, Texts(), monkeypatch
    )
    assert found(step=7)["bleu"] == pytest.approx(100)


def test_shows_source_reference_and_translation(run, monkeypatch):
    texts = Texts()
    translations_by(lambda sentences: ["a", "b"], run, texts, monkeypatch)(step=7)
    ((step, tag, text),) = texts
    assert (step, tag) == (7, "validation/translations")
    assert text.splitlines()[2:] == [
        r"| one \| two | eins zwei drei vier fünf | a |",
        "| three | sechs sieben acht neun | b |",
    ]
