import datetime
import random
import sys

import pytest
from num2words import num2words

from keras_transformer.data.numbers_and_dates import FIRST_DAY, NUMBERS, _Writer, generate_pairs
from keras_transformer.errors import UserError

BASTILLE = datetime.date(1789, 7, 14)


def written(language, date):
    return _Writer(language).write(NUMBERS + (date - FIRST_DAY).days)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Tuesday, July fourteenth, seventeen eighty-nine"),
        ("de", "Dienstag, der vierzehnte Juli siebzehnhundertneunundachtzig"),
        ("fr", "mardi quatorze juillet mille sept cent quatre-vingt-neuf"),
        ("ko", "천칠백팔십구년 칠월 십사일 화요일"),
        ("es", "martes, catorce de julio de mil setecientos ochenta y nueve"),
    ],
)
def test_dates_in_words(language, text):
    assert written(language, BASTILLE) == text


def test_words_are_those_of_the_country_if_num2words_knows_it():
    assert _Writer("pt-BR").write(19) == "dezenove" != _Writer("pt").write(19)
    assert written("deu_AT", BASTILLE) == written("de", BASTILLE)


@pytest.mark.parametrize("language", ["en", "de", "fr", "ko", "es", "ru", "ja"])
def test_numbers_are_those_of_num2words(language):
    writer = _Writer(language)
    numbers = [0, 1, 2, 10, 21, 100, 101, 1_000, 1_001, 100_000, 999_999]
    for number in numbers + random.Random(7).sample(range(NUMBERS), 50):
        assert writer.write(number) == num2words(number, lang=language)


def test_pairs_are_distinct_on_both_sides_and_the_seed_decides():
    pairs = generate_pairs(2_000, "en", "de", seed=1)
    for side in zip(*pairs, strict=True):
        assert len(set(side)) == 2_000
        assert not any(character.isdigit() for text in side for character in text)
    assert generate_pairs(50, seed=1) == generate_pairs(50, seed=1)
    assert generate_pairs(50, seed=1) != generate_pairs(50, seed=2)


def test_unknown_language_is_refused():
    for language in ("klingon", "am"):  # num2words knows Amharic only in part.
        with pytest.raises(UserError, match=f"Received: language='{language}'"):
            generate_pairs(1, "en", language)


@pytest.mark.parametrize("package", ["num2words", "babel"])
def test_missing_package_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"data.generator needs {package}: pip install"):
        generate_pairs(1)
