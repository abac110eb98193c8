"""Finds the text of HTML pages. Everything else stays, also where a page is not well-formed."""

import html
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from keras_transformer.data.languages import closest_language, is_right_to_left
from keras_transformer.documents.document import (
    Document,
    Languages,
    Piece,
    marked,
    separated,
    whole_elements,
    with_attribute,
)
from keras_transformer.translation.markup import Segment

# Elements with text inside. A picture and a comment have none.
_INLINE = set(
    "a abbr acronym b bdi bdo big cite del dfn em font i img ins label mark nobr q s small span "
    "strike strong sub sup time tt u var wbr code kbd samp math svg".split()
)
_VOID = set("area base br col embed hr img input link meta param source track wbr".split())
# Elements whose text stays.
OPAQUE = set(
    "script style template textarea pre svg math code kbd samp var iframe object canvas".split()
)
_ATTRIBUTES = {"alt", "title", "placeholder", "label", "aria-label"}
_DESCRIPTION = re.compile("((og|twitter):)?(description|title)")
_ATTRIBUTE = re.compile(
    r"""(?<=[\s"'/])(?P<name>[^\s"'<>/=]+)(?P<equals>\s*=\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"'>]+)"""
)
Attributes = Sequence[tuple[str, str | None]]


def escape(text: str) -> str:
    """Writes text as HTML."""
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def read_html(text: str, languages: Languages, path: Path) -> Document:
    """Finds the text of a page or a fragment."""
    is_xml = path.suffix.lower() == ".xhtml" or text.startswith("<?xml")  # which has no &nbsp;
    document = Document(partial(html.escape, quote=False) if is_xml else escape)
    document.text = marked(document, _Page(document, languages, is_xml).read(text))
    return document


class _Page(HTMLParser):
    """Reads a page. Each tag, text or comment has the characters until the next begins."""

    def __init__(self, document: Document, languages: Languages, is_xml: bool) -> None:
        super().__init__()
        self.document, self.languages, self.is_xml = document, languages, is_xml
        self.found: list[tuple[tuple[int, int], Piece]] = []

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        kind: Any = "element" if tag in _VOID else "begin"
        self.found.append((self.getpos(), Piece(kind, "", "", tag, dict(attrs))))

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self.found.append((self.getpos(), Piece("element", "", "", tag, dict(attrs))))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((self.getpos(), Piece("end", "", "", tag)))

    def handle_data(self, data: str) -> None:
        self.found.append((self.getpos(), Piece("text", "")))

    def handle_decl(self, decl: str) -> None:
        self.found.append((self.getpos(), Piece("element", "")))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Reads what begins with `<![` as a comment, as browsers do, but in XML to its end."""
        is_whole = self.is_xml and self.rawdata.startswith("<![CDATA[", i)
        return super().parse_marked_section(i) if is_whole else self.parse_bogus_comment(i)

    handle_comment = handle_pi = unknown_decl = handle_decl  # type: ignore[assignment]

    def read(self, text: str) -> Iterator[Piece]:
        """Yields the pieces of the page, with marks for the attributes that are text."""
        self.feed(text)
        self.close()
        lengths = (len(line) + 1 for line in text.split("\n"))
        lines = [*itertools.accumulate(lengths, initial=0)]
        starts = [lines[line - 1] + column for (line, column), _ in self.found]
        raws = (text[start:end] for start, end in itertools.pairwise((*starts, len(text))))
        pieces = (piece._replace(raw=raw) for (_, piece), raw in zip(self.found, raws, strict=True))
        for piece in whole_elements(pieces, self._stays):
            if piece.kind in ("begin", "element"):
                piece = piece._replace(raw=self._with_attributes(piece))
            if piece.name and piece.name not in _INLINE:
                piece = piece._replace(kind="block")
            if piece.kind == "text":
                yield from separated(piece.raw, html.unescape)
            else:
                yield piece._replace(kind="element") if piece.name == "svg" else piece

    def _stays(self, piece: Piece) -> bool:
        """Returns whether the text of an element is not to be translated."""
        name, attributes = piece.name, piece.attributes
        source, language = self.languages[0], attributes.get("lang")
        is_foreign = source and language and not closest_language(source, [language], True)
        classes = (attributes.get("class") or "").split()
        no = attributes.get("translate") == "no" or "notranslate" in classes
        return name in OPAQUE or (name != "html" and bool(no or is_foreign))

    def _with_attributes(self, piece: Piece) -> str:
        """Returns a tag with marks for the attributes that are text, and its new language."""
        name, attributes = piece.name, piece.attributes
        new, is_page = dict[str, str](), name == "html"
        if target := self.languages[1]:
            given = attributes.keys() | ({"lang"} if is_page else ())
            new = {x: target for x in ("lang", "xml:lang") if x in given}
            direction = "rtl" if is_right_to_left(target) else "ltr"
            has_direction = "dir" in attributes and (is_page or name == "body")
            if has_direction or (is_page and direction == "rtl"):
                new["dir"] = direction
        is_button = name == "input" and attributes.get("type") in ("button", "reset", "submit")
        texts = _ATTRIBUTES | ({"value"} if is_button else set())
        if name == "meta":
            described = attributes.get("name") or attributes.get("property") or ""
            texts = {"content"} if _DESCRIPTION.fullmatch(described.lower()) else set()

        def written(found: re.Match[str]) -> str:
            key, value = found["name"].lower(), found["value"]
            value = html.unescape(value[1:-1] if value[0] in "\"'" else value)
            if key not in texts or not any(map(str.isalpha, value)):
                return found[0]
            mark = self.document.mark(Segment(value.strip()), lambda x: x.replace('"', "&quot;"))
            return f'{found["name"]}{found["equals"]}"{mark}"'

        tag = _ATTRIBUTE.sub(written, piece.raw)
        for key, value in new.items():
            tag = with_attribute(tag, key, value)
        return tag
