"""Splits long lines between sentences, words or characters, and joins their translations.

Sentences and characters are those of Unicode (UAX #29, by the package regex), but a sentence does
not end after an abbreviation or an ordinal number, and an opening quotation mark begins the next.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import regex

from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.translation.hypothesis import Hypothesis, SourcePart

# Scripts without spaces, and scripts that have spaces only between sentences.
CJK = r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{ea=F}]"
SOUTH_EAST_ASIAN = r"[\p{lb=SA}\p{Tibt}]"
# Marks that end a sentence wherever they are, and marks that do so before a space.
_STOP, _DOT = r"(?:(?![!?])\p{SB=STerm}|[།༎])", r"[\p{SB=ATerm}!?…]"
_CLOSING = r"""(?:[\p{Pe}\p{Pf}"']|\p{Pi}(?=[\s\p{Pe}\p{Pf}]|$))*+"""
_CONSONANTS = "[bcdfghjklmnpqrstvwxzбвгджзйклмнпрстфхцчшщ]"
_SHORT = "Prof|Gen|Col|Capt|Rep|Sen|Rev|Gov|Hon|Dra|Sra|Srta|Ing|Mag|Fig|Vol|Art|Abb|проф|ул|им"
_SHORT += "|Jan|Feb|Aug|Sept?|Okt|Oct|Nov|De[cz]"
# Initials, "z.B", "3" as in German "3. Mai", and words without a vowel such as "Dr" and "bzw".
_SHORT += rf"|[\p{{Lu}}\p{{Ll}}]|\d{{1,2}}|(?i:{_CONSONANTS}){_CONSONANTS}{{1,4}}"
_END = (
    rf"(?<!{_STOP}|{_DOT}|\b(?:{_SHORT})(?=\.(?!{_STOP}|{_DOT})))"
    rf"(?:{_DOT}|(?P<stop>{_STOP}))++{_CLOSING}(?(stop)\s*+|(?:\s++|(?={CJK})))"
    rf"(?:(?<=\s)|(?!\p{{SB=SContinue}}))(?=\S)"
)
_LOWER_CASE = rf"(?:(?!{_STOP}|{_DOT})\P{{L}})*+\p{{Ll}}"
_SENTENCE_END = regex.compile(rf"{_END}(?(stop)|(?!{_LOWER_CASE}))")
# A vowel stays with its consonant, also where Thai and Lao write it before or after.
_CHARACTER = r"\p{LOE}*\X(?:\P{LOE}(?<=\p{InSC=Vowel_Dependent}))*"
_HALVED = (r"\s+|(?<=[，、；：])(?![，、；：])", _CHARACTER)
_LAST_MARK = rf"(?:{_DOT}|(?P<stop>{_STOP})){_CLOSING}$"
_QUOTES = "\"'“”‘’«»„"


def sentence_ends(text: str) -> list[int]:
    """Returns the places after the sentences of a text, and after the spaces that follow them."""
    return [found.end() for found in _SENTENCE_END.finditer(text)]


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
    for pattern in (_SENTENCE_END, _END, *_HALVED):
        found, length = regex.finditer(pattern, text), len(text.rstrip())
        ends = [x.end() for x in found if 0 < x.end() < length]
        if ends:
            if pattern in _HALVED:
                ends = [ends[(len(ends) + 1) // 2 - 1]]
            parts = (text[i:j] for i, j in itertools.pairwise((0, *ends, len(text))))
            return [piece for part in parts for piece in split_overlong(part, is_short)]
    return [text]


def separator(left: SourcePart, before: str, right: SourcePart, after: str) -> str:
    """Returns a space if there is one between `before` and `after`, translations of two parts.

    Chinese and Japanese have no spaces, but for those between their sources. Thai and its
    neighbours have spaces only between sentences. In other scripts, no space is added inside a word
    that was split.
    """
    has_space = right.first_word >= left.first_word + len(left.text.split())
    mark = regex.search(_LAST_MARK, left.text)
    is_spaced = mark and (has_space or mark["stop"])
    seam = before.rstrip(_QUOTES)[-1:] + after.lstrip(_QUOTES)[:1]
    if regex.match(rf"(?=\p{{P}}|.{CJK}){CJK}", seam):
        return " " if has_space and regex.search(CJK, left.text[-1]) else ""
    if regex.search(SOUTH_EAST_ASIAN, seam):
        is_spaced = is_spaced or (has_space and regex.search(SOUTH_EAST_ASIAN, left.text[-1]))
    else:
        of_source = left.text[-1] + right.text[0]
        is_spaced = is_spaced or has_space or regex.search(f"{CJK}|{SOUTH_EAST_ASIAN}", of_source)
    return " " if is_spaced else ""


def join_hypotheses(sources: Sequence[SourcePart], parts: Sequence[Hypothesis]) -> Hypothesis:
    """Joins the translations of the parts of one sentence. Scores and lengths are summed.

    The source words in the alignments must be counted from the beginning of the whole sentence. If
    a part has no hypothesis, neither has the sentence.
    """
    is_aligned = parts[0].alignment is not None
    is_scored = parts[0].word_scores is not None
    if missing := [part for part in parts if part.score == IMPOSSIBLE]:
        return missing[0]
    texts: list[str] = []
    alignment: set[tuple[int, int]] = set()
    scores: list[float] = []
    words, last = 0, None
    for source, part in zip(sources, parts, strict=True):
        if not part.text:
            continue
        space = separator(*last, source, part.text) if last else ""
        own = [*(part.word_scores or ())]
        if last and not space:  # The part continues the last word.
            words -= 1
            scores[-1:], own[:1] = [float(np.mean([*scores[-1:], *own[:1]]))] if own else [], []
        scores += own
        alignment |= {(index, target + words) for index, target in part.alignment or ()}
        texts += [space, part.text]
        words += len(part.text.split())
        last = source, part.text
    return Hypothesis(
        text="".join(texts),
        ids=tuple(id for part in parts for id in part.ids),
        score=sum(part.score for part in parts),
        log_probability=sum(part.log_probability for part in parts),
        length=sum(part.length for part in parts),
        alignment=tuple(sorted(alignment)) if is_aligned else None,
        word_scores=tuple(scores) if is_scored else None,
    )
