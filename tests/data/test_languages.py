"""Which names are codes of languages, for users and in the names of files."""

import pytest
from pydantic import TypeAdapter, ValidationError

from keras_transformer.data.languages import (
    LanguageCode,
    base_language,
    language_of,
    same_language,
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
    assert same_language("eng", "en-GB") and same_language("ZHO_Hans", "zh-TW")
    assert all(map(same_language, ("arb_Arab", "ar", "iw"), ("ar", "arb", "he")))
    assert not any(
        same_language(*x) for x in (("yue", "zh"), ("score", "sc"), ("source", "source"))
    )
    codes = "zho_Hans de-AT nb cmn pes_Arab lvs_Latn swh_Latn"
    assert [*map(base_language, codes.split())] == ["zh", "de", "nb", "zh", "fa", "lv", "sw"]
