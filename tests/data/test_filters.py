"""Each filter drops its kind of pairs and no other, and counts them."""

import sys
from collections import Counter

import pytest

from keras_transformer.data.filters import filtered, language_test
from keras_transformer.errors import UserError

GOOD = [
    ("Good morning, how are you today?", "Guten Morgen, wie geht es dir heute?"),
    ("Hi.", "Guten Tag!"),
    ("Tom's boat sank.", "Toms Boot sank."),
    ("", "leer"),
]
UNEVEN = [("a", "b" * 10), ("ä" * 14, "abc"), ("x" * 900, "y" * 99)]
GERMAN = ("Das ist ein deutscher Satz.", "Das ist auch ein deutscher Satz.")


def result(pairs, **settings):
    counts = Counter()
    return list(filtered(pairs, counts, **settings)), dict(counts)


@pytest.mark.parametrize(
    ("settings", "bad", "reason"),
    [
        ({"max_length_ratio": 9}, UNEVEN, "a length ratio above 9"),
        ({"identical": True}, [("same", "same"), ("Köln", "Köln"), ("1", "1")], "equal sides"),
        ({"repeated": True}, [GOOD[0], GOOD[0], GOOD[2]], "an equal pair before"),
    ],
)
def test_each_filter_drops_its_pairs_in_order(settings, bad, reason):
    kept, counts = result([*GOOD, *bad, ("end", "Ende")], **settings)
    assert kept == [*GOOD, ("end", "Ende")]
    assert counts == {"kept": 5, reason: 3}


def test_a_ratio_suits_scripts_with_few_characters():
    pairs = [
        ("Good morning!", "早"),
        ("Thank you very much.", "谢谢"),
        ("Hello, how are you?", "你好吗"),
    ]
    assert result(pairs, max_length_ratio=9)[0] == pairs


@pytest.mark.parametrize("codes", [("en", "de-AT"), ("eng_Latn", "deu_Latn"), ("en-GB", "ger")])
def test_sentences_of_another_language_are_dropped(codes):
    is_wrong = language_test(codes)
    english = ("This is an English sentence.", "This is an English sentence, too.")
    french = ("The weather is fine.", "Le temps est très beau aujourd'hui.")
    kept, counts = result([*GOOD, GERMAN, english, french], wrong_language=is_wrong)
    assert (kept, counts) == (GOOD, {"kept": 4, "another language": 3})


def test_close_and_unknown_languages_are_no_reason():
    norwegian = ("Hva heter du?", "Jeg vet ikke hva jeg skal si til deg.")
    assert result([norwegian], wrong_language=language_test(("nb", "nb")))[0] == [norwegian]
    for codes in (("arb_Arab", "arb"), ("pes_Arab", "fil"), ("tl", "tgl_Latn"), ("ps", "pbt_Arab")):
        is_wrong = language_test(codes)
        assert is_wrong(GERMAN), codes
    klingon = ("nuqneH, jatlh ghaH", "Das ist ein deutscher Satz.")
    assert result([klingon], wrong_language=language_test(("tlh", "de")))[0] == [klingon]
    with pytest.raises(UserError, match="must know one of the languages. Received: tlh, xx"):
        language_test(("tlh", "xx"))


def test_a_missing_detector_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(UserError, match=r"wrong_language needs py3langid.*\[language-id\]"):
        language_test(("en", "de"))
