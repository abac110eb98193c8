"""Splits long lines between sentences, words or characters, and joins their translations.

Sentences and characters are those of Unicode (UAX #29, by the package regex), but a sentence does
not end after an abbreviation or an ordinal number, and an opening quotation mark begins the next.
"""

import itertools
from collections.abc import Callable

import regex

from keras_transformer.translation.hypothesis import SourcePart

# Scripts that have no spaces between sentences, and scripts that have none between words only.
_CJK = r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{ea=F}]"
_SOUTH_EAST_ASIAN = r"[\p{lb=SA}\p{Tibt}]"
# Marks that end a sentence wherever they are, and marks that do so before a space.
_STOP, _DOT = r"(?:(?![!?])\p{SB=STerm}|[།༎])", r"[\p{SB=ATerm}!?…]"
_CLOSING = r"""(?:[\p{Pe}\p{Pf}"']|\p{Pi}(?=[\s\p{Pe}\p{Pf}]|$))*+"""
_CONSONANTS = "bcdfghjklmnpqrstvwxzбвгджзйклмнпрстфхцчшщ"
_TITLES = "Prof|Gen|Col|Capt|Rep|Sen|Rev|Gov|Hon|Dra|Sra|Srta|Ing|Mag|Fig|Vol|Art|Abb|проф|ул|им"
_MONTHS = "Jan|Feb|Aug|Sept?|Okt|Oct|Nov|De[cz]"
# Initials, "z.B", "3" as in German "3. Mai", and words without a vowel such as "Dr" and "bzw".
_ABBREVIATION = (
    rf"\b(?:[\p{{Lu}}\p{{Ll}}]|\d{{1,2}}|{_TITLES}|{_MONTHS}|"
    rf"(?i:[{_CONSONANTS}])[{_CONSONANTS}]{{1,4}})"
)
_END = (
    rf"(?<!{_STOP}|{_DOT}|{_ABBREVIATION}(?=\.(?!{_STOP}|{_DOT})))"
    rf"(?:{_DOT}|(?P<stop>{_STOP}))++{_CLOSING}(?(stop)\s*+|(?:\s++|(?={_CJK})))"
    rf"(?:(?<=\s)|(?!\p{{SB=SContinue}}))(?=\S)"
)
_LOWER_CASE_FOLLOWS = rf"(?:(?!{_STOP}|{_DOT})\P{{L}})*+\p{{Ll}}"

_SENTENCE_END, _LOWER_CASE_END, _WORD_END, _CHARACTER = map(
    regex.compile,
    (
        rf"{_END}(?(stop)|(?!{_LOWER_CASE_FOLLOWS}))",
        _END,
        r"\s+|(?<=[，、；：])(?![，、；：])",
        # A vowel stays with its consonant, also where Thai and Lao write it before or after.
        r"\p{Logical_Order_Exception}*\X\p{InSC=Vowel_Dependent}*",
    ),
)
_LAST_MARK = regex.compile(rf"(?:{_DOT}|(?P<stop>{_STOP})){_CLOSING}$")
_UNSPACED = regex.compile(rf"{_CJK}|{_SOUTH_EAST_ASIAN}")
_CJK_SEAM = regex.compile(rf"(?=\p{{P}}|.{_CJK}){_CJK}")
_QUOTES = "\"'“”‘’«»„"


def split_overlong(text: str, is_short: Callable[[str], bool]) -> list[str]:
    """Splits a text until each part satisfies `is_short` or is a single character.

    The text is first split at the ends of its sentences. A sentence that is still too long is
    halved between two words. A word that is still too long is halved between two characters. Each
    part has the white space that follows it.

    >>> split_overlong("One two. Three four five.", lambda part: len(part.split()) <= 2)
    ['One two. ', 'Three ', 'four five.']
    """
    if is_short(text.strip()):
        return [text]
    for end in (_SENTENCE_END, _LOWER_CASE_END, _WORD_END, _CHARACTER):
        ends = [x.end() for x in end.finditer(text) if 0 < x.end() < len(text)]
        if ends:
            if end in (_WORD_END, _CHARACTER):
                ends = [ends[(len(ends) + 1) // 2 - 1]]
            parts = (text[i:j] for i, j in itertools.pairwise((0, *ends, len(text))))
            return [piece for part in parts for piece in split_overlong(part, is_short)]
    return [text]


def separator(left: SourcePart, before: str, right: SourcePart, after: str) -> str:
    """Returns a space if there is one between `before` and `after`, translations of two parts.

    Chinese and Japanese have no spaces, Thai and its neighbours only between sentences. In other
    scripts, no space is added inside a word that was split.
    """
    has_space = right.first_word >= left.first_word + len(left.text.split())
    mark = _LAST_MARK.search(left.text)
    is_end = mark and (has_space or mark["stop"])
    seam = before.rstrip(_QUOTES)[-1:] + after.lstrip(_QUOTES)[:1]
    if _CJK_SEAM.match(seam):
        return ""
    if regex.search(_SOUTH_EAST_ASIAN, seam):
        is_spaced = is_end or (has_space and regex.search(_SOUTH_EAST_ASIAN, left.text[-1]))
    else:
        is_spaced = is_end or has_space or _UNSPACED.search(left.text[-1] + right.text[0])
    return " " if is_spaced else ""
