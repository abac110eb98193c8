"""Finds the text of HTML pages. Everything else stays, also where a page is not well-formed."""

import html
import itertools
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from keras_transformer.data.languages import closest_language, is_right_to_left
from keras_transformer.documents.document import (
    Document,
    Languages,
    SegmentBuilder,
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
_ATTRIBUTES = {"alt", "title", "placeholder", "aria-label"}
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
    document = Document(escape, errors="xmlcharrefreplace")
    document.text = _Page(document, languages).read(text)
    return document


class _Page(HTMLParser):
    """Reads a page. Each tag, text or comment has the characters until the next begins."""

    def __init__(self, document: Document, languages: Languages) -> None:
        super().__init__(convert_charrefs=False)
        self.document, self.languages = document, languages
        self.builder = SegmentBuilder(document)
        self.found: list[str] = []
        # The element whose text stays: its name, how often it is open, and its characters.
        self.opaque, self.depth, self.kept = "", 0, ""
        self.events: list[tuple[tuple[int, int], str, str, Attributes]] = []

    def _add(self, kind: str, name: str = "", attributes: Attributes = ()) -> None:
        self.events.append((self.getpos(), kind, name, attributes))

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self._add("element" if tag in _VOID else "start", tag, attrs)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self._add("element", tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_charref(self, name: str) -> None:
        self._add("reference")

    def handle_decl(self, decl: str) -> None:
        self._add("comment")

    handle_entityref = handle_charref
    handle_comment = handle_pi = unknown_decl = handle_decl  # type: ignore[assignment]

    def read(self, text: str) -> str:
        """Returns the text of the page with marks."""
        self.feed(text)
        self.close()
        lengths = (len(line) + 1 for line in text.split("\n"))
        lines = [*itertools.accumulate(lengths, initial=0)]
        starts = [lines[line - 1] + column for (line, column), *_ in self.events]
        ends = [*starts[1:], len(text)]
        for start, end, event in zip(starts, ends, self.events, strict=False):
            self._read_event(text[start:end], *event[1:])
        return "".join([*self.found, self.builder.build(), self.kept])

    def _read_event(self, raw: str, kind: str, name: str, attributes: Attributes) -> None:
        if self.depth:
            self.kept += raw
            self.depth += ((kind == "start") - (kind == "end")) * (name == self.opaque)
            if not self.depth:
                self._end_opaque()
        elif kind in ("text", "reference"):
            self.builder.add_text(html.unescape(raw) if kind == "reference" else raw, raw)
        elif kind == "comment":
            self.builder.add_element(raw)
        elif kind == "start" and (name in OPAQUE or self._stays(name, dict(attributes))):
            self.opaque, self.depth, self.kept = name, 1, raw
        else:
            raw = raw if kind == "end" else self._with_attributes(raw, name, dict(attributes))
            if name not in _INLINE:
                self.found += [self.builder.build(), raw]
            elif kind == "element":
                self.builder.add_element(raw)
            else:
                (self.builder.open if kind == "start" else self.builder.close)(name, raw)

    def _end_opaque(self) -> None:
        kept, self.kept = self.kept, ""
        if self.opaque not in _INLINE:
            self.found += [self.builder.build(), kept]
        elif self.opaque == "svg":
            self.builder.add_element(kept)
        else:
            self.builder.add_opaque(kept)

    def _stays(self, name: str, attributes: dict[str, str | None]) -> bool:
        """Returns whether an element says that its text is not to be translated."""
        source, language = self.languages[0], attributes.get("lang")
        is_foreign = source and language and not closest_language(source, [language], True)
        classes = (attributes.get("class") or "").split()
        no = attributes.get("translate") == "no" or "notranslate" in classes
        return name != "html" and bool(no or is_foreign)

    def _with_attributes(self, raw: str, name: str, attributes: dict[str, str | None]) -> str:
        """Returns a tag with marks for the attributes that are text, and its new language."""
        target = self.languages[1]
        is_rtl = target is not None and is_right_to_left(target)
        names = ("lang", "xml:lang")
        new: dict[str, str] = {x: target for x in names if target and x in attributes}
        if target and name == "html":
            new["lang"] = target
        if target and (
            (is_rtl and name == "html") or "dir" in attributes and name in ("html", "body")
        ):
            new["dir"] = "rtl" if is_rtl else "ltr"
        texts = set(_ATTRIBUTES)
        if name == "meta":
            described = attributes.get("name") or attributes.get("property") or ""
            texts = {"content"} if _DESCRIPTION.fullmatch(described.lower()) else set()

        def written(found: re.Match[str]) -> str:
            key, value = found["name"].lower(), html.unescape(found["value"].strip("\"'"))
            if key not in texts or not any(map(str.isalpha, value)):
                return found[0]
            mark = self.document.mark(Segment(value.strip()), lambda x: x.replace('"', "&quot;"))
            return f'{found["name"]}{found["equals"]}"{mark}"'

        tag = _ATTRIBUTE.sub(written, raw)
        for key, value in new.items():
            tag = with_attribute(tag, key, value)
        return tag
