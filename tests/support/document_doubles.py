"""Translators of documents without a model."""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from keras_transformer.translation.alignment import TokenAlignment
from keras_transformer.translation.markup import Span, project

TOKEN = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
PROTECTED = re.compile(r"\{\w+\}|%[sd]|https?://[\w./?=&]+[\w/]")


class Capitals:
    """Writes words in capitals, and with `reverse` those of a sentence in the reverse order.

    Elements that stay and placeholders are stand-ins meanwhile.
    """

    waiting = ""

    def __init__(self, reverse=False):
        self.reverse, self.seen = reverse, []

    def translate_segments(self, segments, *, glossary=None, escape=str, progress=False):
        self.seen += segments
        return [SimpleNamespace(text=self._translated(x, escape)) for x in segments]

    def _translated(self, segment, escape):
        found = [Span(*x.span(), replacement=x[0]) for x in PROTECTED.finditer(segment.text)]
        segment = with_stand_ins(segment._replace(spans=(*segment.spans, *found)))
        text = segment.text
        source = [x.span() for x in TOKEN.finditer(text)]
        order, target, words = self._order(text, source), [], ""
        for token, last in zip(order, [None, *order], strict=False):
            start, end = source[token]
            glued = last is not None and source[last][1] == start and not self.reverse
            is_mark = not text[start].isalnum()
            words += "" if last is None or glued or (self.reverse and is_mark) else " "
            is_kept = text[start:end].startswith("Qq")
            word = text[start:end] if is_kept else text[start:end].upper()
            target.append((len(words), len(words) + len(word)))
            words += word
        return project(segment, words, aligned((text, source), (words, target), order), escape)

    def _order(self, text, source):
        ends = [n + 1 for n, (x, y) in enumerate(source) if text[x:y] in ".!?"]
        order = []
        for start, end in itertools.pairwise(sorted({0, *ends, len(source)})):
            last = end - (text[source[end - 1][0]] in ".!?")
            sentence = [*range(start, last)]
            order += [*(sentence[::-1] if self.reverse else sentence), *range(last, end)]
        return order


def aligned(source, target, order):
    """Returns the alignment of the words of two texts, each with its tokens."""
    rows, columns = (
        [n for n, (start, _) in enumerate(places) if text[start].isalnum()]
        for text, places in (target, source)
    )
    shares = np.eye(len(source[1]))[order][np.ix_(rows, columns)]
    return TokenAlignment([source[1][n] for n in columns], [target[1][n] for n in rows], shares)


def with_stand_ins(segment):
    """Returns a segment in which each replaced part is a word that begins with Qq."""
    spans, text = list(segment.spans), segment.text
    for number in range(len(spans)):
        if (kept := spans[number]).replacement is None:
            continue
        word = f"Qq{chr(97 + number)}"
        longer = len(word) - (kept.end - kept.start)
        text = text[: kept.start] + word + text[kept.end :]
        spans = [
            x
            if x is kept
            else replace(
                x,
                start=x.start + longer * (x.start >= kept.end and x.start > kept.start),
                end=x.end + longer * (x.end >= kept.end and x.end > kept.start),
            )
            for x in spans
        ]
        spans[number] = replace(kept, end=kept.start + len(word))
    return segment._replace(text=text, spans=tuple(spans))
