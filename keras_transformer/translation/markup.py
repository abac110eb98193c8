"""Text with markup, and its translation with the same markup."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from keras_transformer.translation.alignment import TokenAlignment


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
    """

    start: int
    end: int
    before: str = ""
    after: str = ""
    replacement: str | None = None


class Segment(NamedTuple):
    """Text of a document that is translated as a whole, such as a paragraph."""

    text: str
    spans: tuple[Span, ...] = ()


def project(
    segment: Segment,
    target: str,
    alignment: TokenAlignment,
    escape: Callable[[str], str] = str,
) -> str:
    """Returns a translation with the markup of its source."""
    raise NotImplementedError
