"""Parts of a text in brackets, which a model that has seen no brackets can't read."""

from dataclasses import replace

import regex

from keras_transformer.translation.alignment import has_words
from keras_transformer.translation.markup import Segment, Span

# With the white space before it: "item(s)" has none.
_ASIDE = regex.compile(
    r"(?P<space>^|\s+)(?P<own>(?P<round>\((?:[^()]++|(?&round))*+\))"
    r"|(?P<square>\[(?:[^\[\]]++|(?&square))*+\]))(?!\w)"
)


def has_asides(text: str) -> bool:
    """Returns whether a text has parts in brackets."""
    return bool(_ASIDE.search(text))


def without_asides(segment: Segment) -> tuple[Segment, list[tuple[Span, Segment]]]:
    """Returns a segment without its parts in brackets, and each of them after its place.

    The place is an empty span that begins with the white space before the part. A text that is all
    in brackets has no such part, nor is it one if markup begins in it and ends elsewhere.
    """
    text, spans = segment
    found = [x for x in _ASIDE.finditer(text) if not any(_cross(s, x.span("own")) for s in spans)]
    if not has_words(_ASIDE.sub("", text)):
        return segment, []

    def moved(place: int) -> int:
        return place - sum(max(0, min(place, x.end()) - x.start()) for x in found)

    asides = []
    for x in found:
        start, end = x.span("own")
        inner = [s for s in spans if start <= s.start and s.end <= end]
        spans = tuple(s for s in spans if s not in inner)
        own = (replace(s, start=s.start - start, end=s.end - start) for s in inner)
        place = Span(moved(start), moved(start), before=x["space"])
        asides.append((place, Segment(x["own"], tuple(own))))
    edges = [0, *(n for x in found for n in x.span()), len(text)]
    rest = "".join(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
    spans = tuple(replace(s, start=moved(s.start), end=moved(s.end)) for s in spans)
    return Segment(rest, spans), asides


def _cross(span: Span, part: tuple[int, int]) -> bool:
    first, second = sorted(((span.start, span.end), part))
    return first[0] < second[0] < first[1] < second[1]
