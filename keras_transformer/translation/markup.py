"""Text with markup, and its translation with the same markup."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from keras_transformer.translation.alignment import Offsets, TokenAlignment, has_words


@dataclass(frozen=True)
class Span:
    """A part of a segment that markup encloses, or that a text replaces.

    Attributes:
        start: First character of `Segment.text`.
        end: Character after the last. An empty element has `end == start`.
        before: Markup before the part, as it is written.
        after: Markup after the part.
        replacement: Text to write in place of the translation of the part, as it is. Defaults to
            None, which means the translation.
        is_upper: Whether the translation of the part is written in upper case.
    """

    start: int
    end: int
    before: str = ""
    after: str = ""
    replacement: str | None = None
    is_upper: bool = False


class Segment(NamedTuple):
    """Text of a document that is translated as a whole, such as a paragraph.

    Of spans with the same place, the outer ones come first. An empty element at the edge of another
    span is outside of it.
    """

    text: str
    spans: tuple[Span, ...] = ()


def project(
    segment: Segment,
    target: str,
    alignment: TokenAlignment,
    escape: Callable[[str], str] = str,
) -> str:
    """Returns a translation with the markup of its source.

    Each span gets the contiguous words of the translation that attend to it most, within those of
    the span around it and beside those of its siblings. The result is a tree that has the markup of
    each span once, whatever the alignment is. `escape` changes text, but no markup or replacement.
    """
    tree = _tree(segment)
    projection = _Projection(segment.text, target, alignment)
    projection.place(tree, 0, len(target))
    for start, end in projection.strays:
        _leave_out(tree, start, end)
    return _written(tree, target, escape)


def write(segment: Segment, escape: Callable[[str], str] = str) -> str:
    """Returns a segment with its markup, without translation."""
    return _written(_tree(segment), segment.text, escape)


@dataclass
class _Node:
    """A span in the tree, and its place in the text that is written: characters and words."""

    span: Span
    start: int
    end: int
    children: list["_Node"] = field(default_factory=list)
    words: range = range(0)


def widened(spans: Iterable[Span]) -> list[Span]:
    """Returns spans of which none begins or ends inside a replaced part: markup is around it."""
    spans = [*spans]
    for part in [x for x in spans if x.replacement is not None]:
        for n, x in enumerate(spans):
            if x.replacement is None and x.start < part.end and part.start < x.end:
                start, end = min(x.start, part.start), max(x.end, part.end)
                spans[n] = replace(x, start=start, end=end)
    return spans


def _tree(segment: Segment) -> _Node:
    """Returns the spans as a tree, in which the replaced parts are leaves."""
    spans = widened(segment.spans)
    spans.sort(key=lambda x: (x.start, x.end > x.start, -x.end, x.replacement is not None))
    length = len(segment.text)
    stack = [_Node(Span(0, length), 0, length)]
    for span in spans:
        while len(stack) > 1 and stack[-1].span.end <= span.start:
            stack.pop()
        # Spans that cross each other are no tree: the later one ends with the earlier one.
        end = min(span.end, stack[-1].end)
        node = _Node(replace(span, end=end), span.start, end)
        stack[-1].children.append(node)
        if span.end > span.start and span.replacement is None:
            stack.append(node)
    return stack[0]


def _leave_out(node: _Node, start: int, end: int) -> None:
    """Leaves out characters of the text that is written, unless a replaced part has them."""
    for child in node.children:
        if child.start < end and start < child.end:
            return _leave_out(child, start, end) if child.span.replacement is None else None
    node.children.append(_Node(Span(0, 0, replacement=""), max(start, node.start), end))
    return None


def _written(node: _Node, text: str, escape: Callable[[str], str]) -> str:
    """Returns the characters of a node in `text`, with the markup of what is in it."""
    if node.span.replacement is not None:
        return node.span.replacement
    own = (lambda x: escape(x.upper())) if node.span.is_upper else escape
    found, at, previous = "", node.start, node.span
    for child in sorted(node.children, key=lambda x: (x.start, x.end)):
        before, span = own(text[at : child.start]), child.span
        is_apart = span.start > previous.end or span.end < previous.start
        if is_apart and not before and None not in (span.replacement, previous.replacement):
            before = " "  # of two parts that the translation has at one place
        found += f"{before}{span.before}{_written(child, text, own)}{span.after}"
        at, previous = child.end, span
    return found + own(text[at : node.end])


class _Projection:
    """Places spans in a translation. Only words count: marks follow the words beside them."""

    def __init__(self, source: str, target: str, alignment: TokenAlignment) -> None:
        self.source, self.target = source, target
        self.sources, self.targets, self.shares = alignment
        # Replaced parts of the source in the translation, but outside of the markup around them.
        self.strays: list[tuple[int, int]] = []

    def place(self, node: _Node, start: int, end: int) -> None:
        """Places a node in the characters from `start` to `end`, and what is in it within them."""
        node.start, node.end, at = start, end, start
        self._place_children(node)
        for child in sorted(node.children, key=lambda x: (x.start, x.end)):
            first = min(max(child.start, at), end)
            at = min(max(child.end, first), end)
            self.place(child, first, at)

    def _place_children(self, node: _Node) -> None:
        """Places the children of a node: those with the most attention per word come first."""
        inside = [n for n, x in enumerate(self.targets) if node.start <= x[0] and x[1] <= node.end]
        node.words = range(inside[0], inside[-1] + 1) if inside else range(0)
        free = set(node.words)

        def weight(child: _Node) -> float:
            words = _touched(self.sources, child.span)
            return -float(self.shares[:, words].sum()) / max(1, len(words))

        for child in sorted(node.children, key=weight):
            if not self._place_literally(child, node, free):
                if words := _touched(self.sources, child.span):
                    share = self.shares[:, words].sum(1)
                    child.words = _best_range([(n, share[n]) for n in node.words], free)
                place = self._with_marks if child.words else self._without_words
                child.start, child.end = place(child, node)
            free -= {*child.words}

    def _place_literally(self, child: _Node, node: _Node, free: set[int]) -> bool:
        """Places a replaced part where it, or its replacement, is written in the translation."""
        span, source = child.span, self.source
        if span.replacement is None:
            return False
        # A translation can add an ending, as in "Toms". One of the source stays.
        is_first = not source[: span.start][-1:].isalnum()
        is_last = not re.match("['’]?\\w", source[span.end :])
        for text in filter(has_words, (source[span.start : span.end], span.replacement)):
            ending = r"(?:['’]?\w{1,2})?(?!\w)" if text[-1].isalpha() else r"(?!\w)"
            pattern = r"(?<!\w)" * is_first + re.escape(text) + ending * is_last
            for found in re.finditer(rf"\s*({pattern})", self.target):
                child.start, child.end = found.span(1)
                words = _touched(self.targets, child)
                if words and free.issuperset(words):
                    child.words = range(words[0], words[-1] + 1)
                    return True
                if words and not {*words} & {*node.words} and source.count(text) == 1:
                    self.strays.append(found.span())
                    child.start, child.end = self._without_words(child, node)
                    return True
        return False

    def _with_marks(self, child: _Node, node: _Node) -> tuple[int, int]:
        """Returns the characters of a child's words, with marks if the source has them there."""
        words, span, text = child.words, child.span, self.target
        first, last = self.targets[words[0]][0], self.targets[words[-1]][1]
        if span.replacement is not None:
            return first, last
        covered = self.source[span.start : span.end].strip()
        if words[-1] == node.words[-1] and not self.source[span.end : node.span.end].strip():
            last = node.end
        elif not covered[-1].isalnum():
            last += min(_marks(text[last : node.end]), _marks(covered[::-1]))
        if words[0] == node.words[0] and not self.source[node.span.start : span.start].strip():
            first = node.start
        elif not covered[0].isalnum():
            first -= min(_marks(text[node.start : first][::-1]), _marks(covered))
        return first, last

    def _without_words(self, child: _Node, node: _Node) -> tuple[int, int]:
        """Returns the characters of marks, or the gap of an element with the fewest crossings."""
        span, source = child.span, self.source
        covered = source[span.start : span.end].strip()
        if covered and (at := self.target.find(covered, node.start, node.end)) >= 0:
            return at, at + len(covered)
        left, right = source[node.span.start : span.start], source[span.end : node.span.end]
        known = [n for n, x in enumerate(self.sources) if x[1] <= span.start]
        share = self.shares[:, known].sum(1)[node.words.start : node.words.stop]
        crossings = np.cumsum([0.0, *(1 - 2 * share)])  # of each gap, more than of the first
        gap = int(np.argmin(crossings)) if has_words(right) else len(share)
        gap = node.words.start + (gap if has_words(left) else 0)
        before = self.targets[gap - 1][1] if gap > node.words.start else node.start
        after = self.targets[gap][0] if gap < node.words.stop else node.end
        between, at = self.target[before:after], before
        if left.strip() and not left.rstrip()[-1].isalnum():
            at = before + _marks(between)
        is_before_mark = right.strip() and not right.lstrip()[0].isalnum()
        if is_before_mark:
            between = between.rstrip()
            after = before + len(between) - _marks(between[::-1])
        if not left.strip():  # The space at both ends is that of the source.
            at = min(node.start + len(left), after)
        elif not right.strip():
            at = max(before, node.end - len(right))
        elif gap == node.words.stop and not is_before_mark:
            child.span = replace(span, before=" " * left[-1].isspace() + span.before)
        elif left[-1].isspace() or right[0].isalnum():
            at, is_apart = after, left[-1].isspace()
            first = is_apart and at > node.start and not self.target[at - 1].isspace()
            last = is_apart and right[0].isspace() and not self.target[at : at + 1].isspace()
            child.span = replace(
                span, before=" " * first + span.before, after=span.after + " " * last
            )
        written = child.span.before + child.span.after
        if at == node.start and at < node.end and written[:1].isspace():  # as " (in brackets)"
            child.span = replace(span, before=f"{written.strip()} ", after="")
        return at, at


def _touched(places: Offsets, part: Span | _Node) -> list[int]:
    """Returns the words that have characters of a part."""
    starts_and_ends = ((max(start, part.start), min(end, part.end)) for start, end in places)
    return [n for n, (start, end) in enumerate(starts_and_ends) if start < end]


def _marks(text: str) -> int:
    """Returns the number of marks with which a text begins."""
    return sum(1 for _ in itertools.takewhile(lambda x: not (x.isalnum() or x.isspace()), text))


def _best_range(shares: Sequence[tuple[int, float]], free: set[int]) -> range:
    """Returns the contiguous free words whose shares have the largest sum above a half each."""
    best, total, first = -np.inf, 0.0, 0
    found = range(0)
    for n, share in shares:
        if total <= 0:
            total, first = 0.0, n
        total += share - 0.5 if n in free else -np.inf
        if total > best:
            best, found = total, range(first, n + 1)
    return found
