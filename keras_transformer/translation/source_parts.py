"""Splits sentences into parts that a model accepts, and joins the translations of the parts."""

import itertools
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import IMPOSSIBLE
from keras_transformer.translation.hypothesis import Hypothesis, NBest, SourcePart
from keras_transformer.translation.long_lines import join_hypotheses, sentence_ends, split_overlong

# Invisible characters besides spaces, controls and format characters: fillers and selectors.
_FILLERS = (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810))
INVISIBLE = "".join(map(chr, (*_FILLERS, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))


def source_parts(
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    max_length: int,
    is_split: bool,
    wordless: frozenset[int],
    apart: Sequence[bool],
) -> list[SourcePart]:
    """Encodes sentences. Blank ones have no parts.

    Args:
        tokenizer: Encodes the sentences.
        sentences: Sentences of any lengths.
        max_length: The largest number of tokens that the model accepts.
        is_split: Whether longer sentences are split, not truncated.
        wordless: A part is copied if its pieces are all of these, and one is unknown.
        apart: Which lines are split into their sentences, if `is_split`.
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
        whole[sentence] = rows[0]
        if len(rows) > 1:
            whole[sentence] = [join_hypotheses(sources, x) for x in zip(*rows, strict=True)]
    return whole


def _copies(part: SourcePart, blank: list[Hypothesis]) -> list[Hypothesis]:
    """Returns the hypotheses `blank` of a sentence with the text of a part, where they exist."""
    words = range(part.first_word, part.first_word + len(part.text.split()))
    pairs = tuple((word, word - part.first_word) for word in words)
    given: dict[str, Any] = {"text": part.text}
    given["alignment"] = None if blank[0].alignment is None else pairs
    given["word_scores"] = None if blank[0].word_scores is None else (0.0,) * len(pairs)
    return [x if x.score == IMPOSSIBLE else replace(x, **given) for x in blank]


def is_invisible(text: str) -> bool:
    """Returns whether a text has nothing that can be seen, such as only a soft hyphen."""
    kinds = "Cc", "Cf", "Zs", "Zl", "Zp"
    return all(unicodedata.category(x) in kinds or x in INVISIBLE for x in text)


def wordless_pieces(tokenizer: Tokenizer) -> frozenset[int]:
    """Returns the ids of the source pieces without letters and digits, and of the unknown piece."""
    pieces = enumerate(tokenizer.source_pieces)
    wordless = (id for id, piece in pieces if not any(map(str.isalnum, piece)))
    return frozenset((tokenizer.unk_id, *wordless))
