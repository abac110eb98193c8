"""Codes of languages, of BCP 47 or ISO 639, with hyphens or underscores: en, zh-Hant, deu_Latn."""

import re
from typing import Annotated

from pydantic import AfterValidator


def _checked(code: str) -> str:
    if not re.fullmatch("[a-z]{2,3}", code):  # Most need no library.
        from langcodes import Language, LanguageTagError

        try:
            Language.get(code)
        except LanguageTagError:
            raise ValueError(f"{code!r} is not a language code such as en or pt-BR") from None
    return code


# A code that a user gives. The files of a run have it as suffix.
LanguageCode = Annotated[str, AfterValidator(_checked)]


def language_of(name: str) -> str | None:
    """Returns the standard code if the name of a file or column is that of a language.

    Three letters alone are no language there: txt and raw are codes too.
    """
    from langcodes import standardize_tag, tag_is_valid

    return standardize_tag(name) if len(name) != 3 and tag_is_valid(name) else None


def same_language(name: str, code: str) -> bool:
    """Returns whether a name is a code of the same language, in any spelling, script and region."""
    from langcodes import tag_is_valid

    valid = tag_is_valid(name) and tag_is_valid(code)
    return valid and base_language(name) == base_language(code)


def base_language(code: str) -> str:
    """Returns the shortest code of a language without script and region: ar for arb_Arab."""
    from langcodes import Language

    return str(Language.get(code).prefer_macrolanguage().language)
