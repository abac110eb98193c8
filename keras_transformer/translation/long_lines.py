"""Splits long lines between sentences, words or characters, and joins their translations.

Sentences and characters are those of Unicode (UAX #29, by the package regex), but a sentence does
not end after an abbreviation or an ordinal number, and an opening quotation mark begins the next.
"""

import itertools
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import regex

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.translation.hypothesis import Hypothesis, NBest, SourcePart

# Scripts without spaces, and scripts that have spaces only between sentences.
CJK = r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{ea=F}]"
SOUTH_EAST_ASIAN = r"[\p{lb=SA}\p{Tibt}]"
# Marks that end a sentence wherever they are, and marks that do so before a space.
_STOP, _DOT = r"(?:(?![!?])\p{SB=STerm}|[།༎])", r"[\p{SB=ATerm}!?…]"
_CLOSING = r"""(?:[\p{Pe}\p{Pf}"']|\p{Pi}(?=[\s\p{Pe}\p{Pf}]|$))*+"""
CONSONANTS = "[bcdfghjklmnpqrstvwxzбвгджзйклмнпрстфхцчшщ]"
_SHORT = "Prof|Gen|Col|Capt|Rep|Sen|Rev|Gov|Hon|Dra|Sra|Srta|Ing|Mag|Fig|Vol|Art|Abb|проф|ул|им"
_SHORT += "|Jan|Feb|Aug|Sept?|Okt|Oct|Nov|De[cz]"
# Initials, "z.B", "3" and "3.10" as in German "3. Mai", but not "3.50", and words without a vowel
# such as "Dr" and "bzw".
_SHORT += rf"|[\p{{Lu}}\p{{Ll}}]|(?i:{CONSONANTS}){CONSONANTS}{{1,4}}"
_SHORT += r"|(?<!\d[.,:])\d{1,2}|(?<=\d\.)(?:0?[1-9]|1[0-2])"
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
# Invisible characters besides spaces, controls and format characters: fillers and selectors.
_FILLERS = (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810))
INVISIBLE = "".join(map(chr, (*_FILLERS, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))


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


def separator(left: str, before: str, right: str, after: str, has_space: bool) -> str:
    """Returns a space if there is one between `before` and `after`, translations of two texts.

    `has_space` is whether there is one between the texts. Chinese and Japanese have no spaces, but
    for those between their sources. Thai and its neighbours have spaces only between sentences. In
    other scripts, no space is added inside a word that was split.
    """
    mark = regex.search(_LAST_MARK, left)
    is_spaced = mark and (has_space or mark["stop"])
    seam = before.rstrip(_QUOTES)[-1:] + after.lstrip(_QUOTES)[:1]
    if regex.match(rf"(?=\p{{P}}|.{CJK}){CJK}", seam):
        return " " if has_space and regex.search(CJK, left[-1]) else ""
    if regex.search(SOUTH_EAST_ASIAN, seam):
        is_spaced = is_spaced or (has_space and regex.search(SOUTH_EAST_ASIAN, left[-1]))
    else:
        of_source = left[-1] + right[0]
        is_spaced = is_spaced or has_space or regex.search(f"{CJK}|{SOUTH_EAST_ASIAN}", of_source)
    return " " if is_spaced else ""


def source_parts(
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    max_length: int,
    is_split: bool,
    wordless: frozenset[int],
    apart: Sequence[bool],
) -> list[SourcePart]:
    """Encodes sentences. Blank ones have no parts.

    If `is_split`, sentences of more than `max_length` tokens are split, and not truncated, and the
    lines that are `apart` are split into their sentences. A part is copied if its pieces are all
    `wordless`, and one is unknown.
    """
    texts = ["" if is_invisible(sentence) else sentence.strip() for sentence in sentences]
    parts: list[SourcePart] = []
    for index, (text, pieces) in enumerate(zip(texts, tokenizer.encode_source(texts), strict=True)):
        tag, rest = tokenizer.split_tag(text)
        if tag == [tokenizer.unk_id]:
            known = ", ".join([*tokenizer.tag_ids][:8])
            message = f"The model has tags such as {known}. Received: {text[:40]!r}"
            warnings.warn(message, stacklevel=5)
        most = max_length - len(tokenizer.frame_source(tag))
        pieces = pieces[len(tag) :]
        sources = [(rest.strip(), pieces)]
        is_copied = _is_copied(pieces, tokenizer.unk_id, wordless)
        is_whole = len(pieces) <= most or is_copied
        ends = sentence_ends(rest) if apart[index] and not is_copied else []
        if is_split and (ends or not is_whole):
            sources = _split(tokenizer, rest, most, ends)
        elif not is_whole:
            warnings.warn(
                f"Only the first {most:,} of {len(pieces):,} pieces of {text[:40]!r}... are "
                "translated.",
                stacklevel=5,
            )
        # The word in which each part begins: the parts have the characters of the text in order.
        words = [number for number, word in enumerate(text.split()) for _ in word]
        before = [text.removesuffix(rest), *(part for part, _ in sources)]
        starts = np.cumsum([len("".join(part.split())) for part in before])
        kept = [(*x, start) for x, start in zip(sources, starts, strict=False) if x[1]]
        for number, (part, ids, start) in enumerate(kept):
            framed = tokenizer.frame_source([*tag, *ids[:most]])
            first = len(framed) - len(ids[:most]) - tokenizer.source_eos
            is_copied = _is_copied(ids, tokenizer.unk_id, wordless)
            parts.append(SourcePart(index, number, framed, part, words[start], is_copied, first))
    return parts


def _split(
    tokenizer: Tokenizer, text: str, most: int, ends: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Returns parts of a text, which end at `ends`, too, and their pieces, at most so many."""
    encode = tokenizer.encode_source
    sentences = (text[i:j] for i, j in itertools.pairwise((0, *ends, len(text))))
    found = (split_overlong(x, lambda x: len(encode([x])[0]) <= most) for x in sentences)
    parts = [x.strip() for pieces in found for x in pieces]
    return list(zip(parts, encode(parts), strict=True))


def _is_copied(pieces: Sequence[int], unk_id: int, wordless: frozenset[int]) -> bool:
    return unk_id in pieces and wordless.issuperset(pieces)


def warn_of_copies(texts: Sequence[str]) -> None:
    """Warns of texts that are copied because no word is known, if there are any."""
    if texts:
        shown = ", ".join(repr(x[:40]) for x in texts[:10]) + ", ..." * (len(texts) > 10)
        warnings.warn(
            f"Text without a known word is copied, not translated ({len(texts):,}): {shown}",
            stacklevel=5,
        )


def whole_sentences(
    parts: list[SourcePart], found: NBest, blank: list[Hypothesis], count: int
) -> NBest:
    """Joins hypothesis k of all parts of each sentence. Sentences without parts get `blank`.

    `found` has the hypotheses of the parts that are not copied.
    """
    whole, translated = [blank] * count, iter(found)
    for sentence, group in itertools.groupby(parts, lambda part: part.sentence):
        sources = list(group)
        rows = [_copies(x, blank) if x.is_copied else next(translated) for x in sources]
        whole[sentence] = [join_hypotheses(sources, x) for x in zip(*rows, strict=True)]
    return whole


def _copies(part: SourcePart, blank: list[Hypothesis]) -> list[Hypothesis]:
    """Returns the hypotheses `blank` of a sentence with the text of a part, where they exist."""
    words = range(part.first_word, part.first_word + len(part.text.split()))
    pairs = tuple((word, word - part.first_word) for word in words)
    alignment = None if blank[0].alignment is None else pairs
    scores = None if blank[0].word_scores is None else (0.0,) * len(pairs)
    copy = replace(blank[0], text=part.text, alignment=alignment, word_scores=scores)
    return [x if x.score == IMPOSSIBLE else copy for x in blank]


def is_invisible(text: str) -> bool:
    """Returns whether a text has nothing that can be seen, such as only a soft hyphen."""
    kinds = "Cc", "Cf", "Zs", "Zl", "Zp"
    return all(unicodedata.category(x) in kinds or x in INVISIBLE for x in text)


def wordless_pieces(tokenizer: Tokenizer) -> frozenset[int]:
    """Returns the ids of the source pieces without letters and digits, and of the unknown piece."""
    pieces = enumerate(tokenizer.source_pieces)
    wordless = (id for id, piece in pieces if not any(map(str.isalnum, piece)))
    return frozenset((tokenizer.unk_id, *wordless))


def join_hypotheses(sources: Sequence[SourcePart], parts: Sequence[Hypothesis]) -> Hypothesis:
    """Joins the translations of the parts of one sentence. Scores and lengths are summed.

    The source words in the alignments must be counted from the beginning of the whole sentence. If
    a part has no hypothesis, neither has the sentence.
    """
    if missing := [part for part in parts if part.score == IMPOSSIBLE]:
        return missing[0]
    texts: list[str] = []
    alignment: set[tuple[int, int]] = set()
    scores: list[float] = []
    words, last, space = 0, None, ""
    for source, part in zip(sources, parts, strict=True):
        if not part.text:
            continue
        if last:
            before, translation = last
            has_space = source.first_word >= before.first_word + len(before.text.split())
            space = separator(before.text, translation, source.text, part.text, has_space)
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
        alignment=None if parts[0].alignment is None else tuple(sorted(alignment)),
        word_scores=None if parts[0].word_scores is None else tuple(scores),
    )
