"""Codes of languages, of BCP 47 or ISO 639, with hyphens or underscores: en, zh-Hant, deu_Latn."""

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

if TYPE_CHECKING:
    from langcodes import Language


def _parsed(code: str) -> "Language":
    from langcodes import Language  # takes long to import, and most commands need no library

    return Language.get(code)


def _checked(code: str) -> str:
    if not re.fullmatch("[a-z]{2,3}", code):
        try:
            _parsed(code)
        except ValueError:
            raise ValueError(f"{code!r} is not a language code such as en or pt-BR") from None
    return code


# A code that a user gives. The files of a run have it as suffix.
LanguageCode = Annotated[str, AfterValidator(_checked)]

# Codes that mean another one here. By Unicode's likely subtags, ko would not be NLLB's kor_Hang.
_USUAL = {"no": "nb", "pbt": "ps", "Hang": "Kore"}

_RIGHT_TO_LEFT = "Adlm Arab Hebr Mand Nkoo Rohg Samr Syrc Thaa".split()


def language_of(name: str) -> str | None:
    """Returns the standard code if the name of a file or column is that of a language.

    Three letters alone are no language there: txt and raw are codes too.
    """
    from langcodes import standardize_tag, tag_is_valid

    is_code = len(name) != 3 and tag_is_valid(name)
    return standardize_tag(name) if is_code else None


def closest_language(code: str, names: Iterable[str], other_region: bool = False) -> str | None:
    """Returns the name that is closest to the code of a language, or None.

    This is the rule for columns, keys of JSON, and languages of TMX and XLIFF. Language and script
    must be those of the code. A code without a script has the likely one: zh-TW is zh-Hant, sr is
    sr-Cyrl. A code without a region allows every region. A code with a region allows only that one,
    or names without a region that it is likely for: pt-BR allows pt. With `other_region`, it allows
    all. An equal code comes first, then the nearest region by Unicode's distance.
    """
    from langcodes import tag_is_valid

    names = [*names]
    equal = [name for name in names if _spelled(name) == _spelled(code)]
    if equal or not tag_is_valid(code):
        return next(iter(equal), None)
    wanted, found = _likely(code), dict[str, int]()
    kind = _kind(wanted)
    is_near = other_region or not _parsed(code).territory
    for name in filter(tag_is_valid, names):
        full = _likely(name)
        if _kind(full) == kind:
            if is_near or full.territory == wanted.territory:
                found[name] = wanted.distance(full)
    return min(found, key=found.__getitem__, default=None)


def _spelled(code: str) -> str:
    return code.lower().replace("_", "-")


@functools.cache
def _likely(code: str) -> "Language":
    """Returns a language with its likely script and region."""
    language = _parsed(code).prefer_macrolanguage()
    return language.maximize() if language.language else language  # und is no English


def _kind(full: "Language") -> list[str | None]:
    return [_USUAL.get(str(x), x) for x in (full.language, full.script)]


def base_language(code: str) -> str:
    """Returns the shortest code of a language without script and region: ar for arb_Arab."""
    return str(_parsed(code).prefer_macrolanguage().language)


# The codes of scripts that have no spaces between words.
_HAN = ("Hani", "Hanb", "Hans", "Hant")
_UNSPACED = (
    "Bali Bopo Hira Hrkt Java Jpan Kana Khmr Lana Laoo Mymr Tale Talu Tavt Thai Tibt".split()
)


def bleu_tokenization(language: str) -> str:
    """Returns the tokenization of BLEU for a language: "char" for "tha", as for "th-TH"."""
    tag = _parsed(language).maximize()
    if tag.script in _HAN and tag.language != "ja":
        return "zh"
    return "char" if tag.script in (*_HAN, *_UNSPACED) else "13a"


def is_right_to_left(code: str) -> bool:
    """Returns whether a language is written from right to left."""
    return _likely(code).script in _RIGHT_TO_LEFT
