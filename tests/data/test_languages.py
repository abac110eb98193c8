"""Which names are codes of languages, for users and in the names of files."""

import pytest
from pydantic import TypeAdapter, ValidationError

from keras_transformer.data.languages import (
    LanguageCode,
    base_language,
    closest_language,
    language_of,
)


@pytest.mark.parametrize("code", ["en", "deu", "pt-BR", "zh_Hant-HK", "zho_Hans", "EN", "zh-yue"])
def test_codes_stay_as_they_are_spelled(code):
    assert TypeAdapter(LanguageCode).validate_python(code) == code


@pytest.mark.parametrize("code", ["", "english", "../x", "d\x1b", "en\n", "e", "en.tok", "x_"])
def test_other_names_are_refused(code):
    with pytest.raises(ValidationError, match="is not a language code such as en or pt-BR"):
        TypeAdapter(LanguageCode).validate_python(code)


def test_names_of_files_are_languages_only_if_they_are_registered():
    names = {"de": "de", "pt_BR": "pt-BR", "zho_Hans": "zh-Hans", "EN-us": "en-US"}
    assert {name: language_of(name) for name in names} == names
    assert not any(map(language_of, ("gz", "up", "txt", "eng", "score", "tok_v2", "", "1")))


@pytest.mark.parametrize(
    ("code", "names", "found"),
    [
        ("en", ("de", "eng", "en-GB"), "eng"),
        ("ar", ("arb_Arab",), "arb_Arab"),
        ("he", ("iw",), "iw"),
        ("zh", ("yue",), None),
        ("ko", ("kor_Hang",), "kor_Hang"),
        ("no", ("dan_Latn", "nno_Latn", "nob_Latn"), "nob_Latn"),
        ("source", ("x", "Source"), "Source"),
        # Another script never matches.
        ("zh-Hans", ("zh-TW", "zh-CN"), "zh-CN"),
        ("zh-Hans", ("zh-TW", "zh_Hant", "zh-HK"), None),
        ("zho_Hans", ("ZHO_Hans",), "ZHO_Hans"),
        ("sr_Latn_RS", ("sr", "sr-Cyrl-RS"), None),
        # A code without a region allows every region, its own first.
        ("de", ("de-AT", "de-DE", "DE"), "DE"),
        ("de", ("de-AT",), "de-AT"),
        # Another region only if asked for.
        ("pt-BR", ("pt-PT", "pt_br"), "pt_br"),
        ("pt-BR", ("pt-PT", "pt"), "pt"),
        ("pt-PT", ("pt", "pt-BR"), None),
    ],
)
def test_the_closest_code_has_the_script_and_region(code, names, found):
    assert closest_language(code, names) == closest_language(code, names[::-1]) == found


def test_another_region_is_the_nearest():
    assert closest_language("en-GB", ["en-US", "en-AU"], other_region=True) == "en-AU"
    assert closest_language("sr-Latn-RS", ["sr-RS"], other_region=True) is None


def test_base_languages_have_no_script_and_region():
    codes = "zho_Hans de-AT nb cmn pes_Arab lvs_Latn swh_Latn"
    assert [*map(base_language, codes.split())] == ["zh", "de", "nb", "zh", "fa", "lv", "sw"]
