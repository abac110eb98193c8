"""Parts of a text in brackets or quotes, or between marks of emphasis, which a model can't read."""

from collections.abc import Callable
from dataclasses import replace

import regex

from keras_transformer.translation.alignment import has_words
from keras_transformer.translation.markup import Segment, Span
from keras_transformer.translation.word_forms import WordForms

# "item(s)" has no part in brackets, nor "the boys' toys" one in quotes.
_ENCLOSED = regex.compile(
    r"(?<!\S)(?:(?P<mark>\()(?:[^()]++|(?P<round>\((?:[^()]++|(?&round))*+\)))*+(?P<close>\))"
    r"|(?P<mark>\[)(?:[^\[\]]++|(?P<square>\[(?:[^\[\]]++|(?&square))*+\]))*+(?P<close>\])"
    r"|(?<=\s)(?P<mark>\p{Pd})\s(?=\p{Ll})[^\p{Pd}\n]+\s(?P<close>(?P=mark))(?=\s))(?!\w)"
    r"|(?<!\w)(?:(?P<mark>[*_]{1,3}|[\"'])(?=[^\s*_])[^\n]*?(?<=\S)(?P<close>(?P=mark))"
    r"|(?P<mark>[“„])[^“”„\n]+(?P<close>[“”])|(?P<mark>«)[^«»\n]+(?P<close>»)"
    r"|(?P<mark>»)[^«»\n]+(?P<close>«)|(?P<mark>‘)[^‘\n]+?(?P<close>’))(?!\w)"
    r"|(?P<mark>\u00ad)(?P<close>)"
)


def without_enclosed(
    segment: Segment, forms: WordForms, escape: Callable[[str], str] = str
) -> tuple[Segment, list[tuple[Span, Segment]]]:
    """Returns a segment without the marks that the training text lacks, and what it has apart.

    Parts in brackets, and what is said in quotes, are apart: each follows its place, an empty span
    with its marks and the white space before them. Around other parts, the marks become markup.
    Marks between which markup begins or ends stay.
    """
    text, spans = segment
    asides, cut = [], list[tuple[int, int]]()

    def moved(span: Span) -> Span:
        start, end = (
            n - sum(max(0, min(n, b) - a) for a, b in cut) for n in (span.start, span.end)
        )
        return replace(span, start=start, end=end)

    for x in _ENCLOSED.finditer(text):
        mark, close, (start, end) = x["mark"], x["close"], x.span()
        crossing = (s for s in spans if (start < s.start < end) != (start < s.end < end))
        is_read = not forms.lacks('"' if mark == "'" else mark[0])
        if is_read or any(crossing) or not (has_words(x[0]) or mark == "\u00ad"):
            continue
        if mark == "\u00ad":
            cut.append((start, end))
        elif mark in "([-–—" or (mark[0] not in "*_" and text[end - 2] in ".!?…,"):
            own = start + len(mark)
            inner = [s for s in spans if start <= s.start and s.end <= end]
            spans = tuple(s for s in spans if s not in inner)
            size = end - len(close) - own
            inside = (
                replace(s, start=max(0, s.start - own), end=min(s.end - own, size)) for s in inner
            )
            aside = Segment(text[own : own + size], tuple(inside))
            first = len(text[:start].rstrip())
            place = Span(first, first, text[first:start] + escape(mark), escape(close))
            asides.append((place, aside))
            cut.append((first, end))
        else:
            spans = (*spans, Span(start, end, escape(mark), escape(close)))
            cut += [(start, start + len(mark)), (end - len(close), end)]
    edges = [0, *(n for part in cut for n in part), len(text)]
    rest = "".join(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
    places = [(moved(place), aside) for place, aside in asides]
    return Segment(rest, tuple(map(moved, spans))), places
