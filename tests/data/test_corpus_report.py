"""Facts about a corpus: counts, lengths, duplicates, scripts, sample."""

import re

import pytest

from keras_transformer.data import corpus_report
from keras_transformer.data.corpus_report import examine

PAIRS = [
    ("one two three", "eins zwei drei"),
    ("one two three", "eins zwei drei"),
    ("one two three", "ein zwei drei"),
    ("four", "четыре"),
    ("Anna", "Anna"),
    ("", "leer"),
    ("empty", "  "),
    ("a b c d e f g", "x"),
]


def test_each_fact_is_counted():
    report = examine(iter(PAIRS))
    assert (report.pairs, report.empty, report.repeated, report.equal) == (6, 2, 1, 1)
    assert (report.source.different, report.target.different) == (4, 5)
    assert (report.source.median, report.source.percentile_95, report.source.longest) == (3, 7, 7)
    assert (report.target.median, report.target.percentile_95, report.target.longest) == (1, 3, 3)
    letters = [{letter for pair in PAIRS[:5] + PAIRS[7:] for letter in pair[x]} for x in (0, 1)]
    assert [report.source.characters, report.target.characters] == [len(x) for x in letters]
    assert report.characters == len(letters[0] | letters[1])
    assert report.sample == PAIRS[:5] + PAIRS[7:]


def test_text_without_a_usable_pair_has_a_report():
    report = examine([("", "")])
    assert (report.pairs, report.empty, report.sample) == (0, 1, [])
    assert report.source.longest == report.target.different == 0


@pytest.mark.parametrize(
    ("first", "others", "notices"),
    [
        (("en", "de"), "ein guter Satz", ["the first pair may be a header: en = de"]),
        (("Go", "Geh!"), "ein guter Satz", []),
        (("a b c", "d"), "Unter@@ wegs sein", ["100% of the pairs have the marks @@ of BPE: .*"]),
        (("a b c", "d"), "ja so ist es", ["many sentences are of another language: .*"]),
    ],
)
def test_signs_of_unfit_text_are_noticed(first, others, notices):
    pairs = [first, *[("a good sentence", others)] * 200]
    report = examine(pairs, is_wrong_language=lambda pair: pair[1].startswith("ja"))
    assert len(report.notices) == len(notices)
    for found, expected in zip(report.notices, notices, strict=True):
        assert re.fullmatch(expected, found)
    assert report.wrong_language == (200 if others.startswith("ja") else 0)


def test_scripts_are_shares_of_the_letters():
    report = examine([("ab, 12!", "аб가나"), ("éß", "다라")])
    assert report.source.scripts == {"Latin": 1.0}
    assert report.target.scripts == {
        "Hangul": pytest.approx(2 / 3),
        "Cyrillic": pytest.approx(1 / 3),
    }


def test_sample_is_bounded_random_and_repeatable(monkeypatch):
    monkeypatch.setattr(corpus_report, "_SAMPLE_SIZE", 50)
    pairs = [(f"source {n}", f"target {n}") for n in range(1_000)]
    first, second = examine(pairs).sample, examine(pairs).sample
    assert first == second
    assert len(set(first)) == 50
    assert 200 < sum(pairs.index(pair) for pair in first) / 50 < 800
