"""What a model can't read as it is typed: marks around parts of a text, entities, spaces."""

import html
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import regex

from keras_transformer.translation.alignment import has_words
from keras_transformer.translation.markup import Segment, Span
from keras_transformer.translation.protected_text import protected
from keras_transformer.translation.word_forms import SPACED_MARK, WordForms

# "item(s)" has no part in brackets, nor "the boys' toys" one in quotes.
_ENCLOSED = (
    r"(?P<mark>[<\[](?P<tag>\w[\w-]*)(?:[\s=][^<>\[\]]*)?[>\]])[^\n]{0,1000}?"
    r"(?P<close>[<\[]/(?P=tag)[>\]])|(?P<mark>\\[a-z]+\{)[^{}\n]+(?P<close>\})"
    r"|(?P<mark>\[)[^\[\]\n]+(?P<close>\]\([^()\s]+\))"  # a link
    r"|(?<!\S)(?:(?P<mark>\()(?!\p{L}\))[^()]*+(?:\([^()]*+\)[^()]*+)*+(?P<close>\))"
    r"|(?P<mark>\[)(?!\[|[ xX]\])[^\[\]]*+(?:\[[^\[\]]*+\][^\[\]]*+)*+(?P<close>\])"
    r"|(?<=\s)(?P<mark>\p{Pd}+)\s(?=\p{Ll})[^\p{Pd}\n]+\s(?P<close>(?P=mark))(?=\s))(?!\w)"
    r"|(?<=\w)(?P<mark>[–—])(?=\p{Ll})[^\p{Pd}\n]+(?P<close>(?P=mark))(?=\w)"
    r"|(?<!\w)(?:(?P<mark>[*_]{1,3}|'{2,3}|[\"'])(?=[^\s*_])(?:(?!\s(?P=mark)\S)[^\n]){0,1000}?(?<=\S)"
    r"(?P<close>(?P=mark))"
    r"|(?P<mark>[“„])[^“”„\n]+(?P<close>[“”])|(?P<mark>«)[^«»\n]+(?P<close>»)"
    r"|(?P<mark>»)[^«»\n]+(?P<close>«)|(?P<mark>‘)[^‘\n]+?(?P<close>’))(?!\w)"
)
# "<img>" but not "<everyday>", which may be a tag that the model reads, the mark of a key as in
# "&Open" and "Save _As", and the soft hyphen.
_SINGLE = (
    r"(?P<mark><(?![bh]r\b)(?:img\b[^<>]*|\w[^<>]*/|/\w[^<>]*)>"
    r"|(?<!\w)[&_](?=\p{L})(?!\w+[;_&])|\u00ad)"
)
_MARKS = regex.compile(rf"{_ENCLOSED}|{_SINGLE}")
# A mark without a space after it, and a word.
_JOINED = regex.compile(
    r"(?<=[\p{Lu}\p{Ll}]{2}),(?=[\p{Lu}\p{Ll}\p{N}])"
    r"|(?<=(?<!\w)(?P<word>\p{L}{2,}))[.!?](?=(?P<word>\p{Lu}\p{Ll}+))"
)
_ROW = regex.compile(r'"[^"]*+"(?:,"[^"]*+")++')  # of a CSV file
_WORD = regex.compile(r"(?<![\w'’])\p{L}{2,}+(?![\w'’])")
_LAST_WORD = regex.compile(r"\S*+$", regex.REVERSE)
_ENTITY = regex.compile(r"&(?:\w+|#\d+|#x[\da-fA-F]+);")


def without_entities(text: str) -> tuple[str, dict[int, str]]:
    """Returns a text with characters in place of HTML entities, and a table to write these again.

    If the text has one of these characters, too, or an unknown entity, all entities stay.
    """
    rest, entities = _ENTITY.sub("", text), {x: html.unescape(x) for x in _ENTITY.findall(text)}
    if any(len(x) > 1 or x in rest for x in entities.values()):
        return text, {}
    table = str.maketrans({character: entity for entity, character in entities.items()})
    return _ENTITY.sub(lambda x: entities[x[0]], text), table


def without_marks(
    segment: Segment, forms: WordForms, escape: Callable[[str], str] = str
) -> tuple[Segment, list[tuple[Span, Segment]]]:
    """Returns a segment without the marks that the training text lacks, and what it has apart.

    Parts in brackets, and what is said in quotes, are apart: each follows its place, an empty span
    with its marks and the white space before them, or the last word of the markup that it ends. The
    other marks become markup. Marks between which markup begins or ends stay, and those inside of
    code, such as a placeholder. What is typed in another way than in the training text is read as
    it is there: spaces at marks, and words.
    """
    text, spans = segment.text, [*segment.spans]
    asides, written, ends = [], [*text], [len(text)]
    marks, corrections = [*_MARKS.finditer(text, overlapped=True)], [*_corrections(text, forms)]
    if not (marks or corrections):
        return segment, []
    is_row = _ROW.fullmatch(text)
    code: list[tuple[int, int] | None] = [None] * len(text)
    for start, end, kind in protected(text, forms):
        if kind != "emphasis":
            code[start:end] = [(start, end)] * (end - start)

    def cut(start: int, end: int) -> None:
        written[start:end] = [""] * (end - start)

    for x in marks:
        mark, close, (start, end) = x["mark"], x["close"] or "", x.span()
        crossing = (s for s in segment.spans if (start < s.start < end) != (start < s.end < end))
        while ends[-1] <= start:
            ends.pop()
        is_read = not forms.lacks('"' if mark[0] == "'" else mark[0])
        is_whole = written[start] and end <= ends[-1] and (not close or has_words(x[0]))
        around = code[start]
        is_inside = around and around != (start, end) and end <= around[1]
        if is_read or is_inside or not is_whole or any(crossing):
            continue
        first, last = start + len(mark), end - len(close)
        is_cell = is_row or text[start - 3 : start].rstrip()[-2:] in ('":', '"=', " =")
        if (
            mark[0] in "(-–—"
            or close == "]"
            or (is_cell and close)
            or (mark[0] not in "*_<" and close and text[end - 2] in ".!?…,")
        ):
            inner = [s for s in spans if start <= s.start < end and s.end <= end]
            spans = [s for s in spans if s not in inner]
            own = (
                replace(s, start=max(0, s.start - first), end=min(s.end, last) - first)
                for s in inner
            )
            place = len(text[:start].rstrip())
            gap = " " * (mark in "–—" and place == start)  # as in "Tom—my brother—is here."
            before = (text[place:start] or gap) + escape(mark) + gap
            aside = Segment(text[first:last], tuple(own))
            # At the end of other markup, it follows the last word, to be within it.
            around_it = [s.start for s in spans if s.start < place and s.end == end]
            word = (
                max(_LAST_WORD.search(text, 0, place).start(), *around_it) if around_it else place
            )
            asides.append((Span(word, place, before, gap + escape(close)), aside))
            cut(place, end)
            written[place] = gap
        else:
            if mark != "\u00ad":
                spans.append(Span(start, end, escape(mark), escape(close)))
            cut(start, first)
            cut(max(first, last), end)
            ends.append(max(first, last))
    for start, end, new in corrections:
        if all(written[start:end]) and not code[start]:
            written[start:end] = [new, *[""] * (end - start - 1)]
    places = [0, *itertools.accumulate(map(len, written))]

    def moved(span: Span) -> Span:
        return replace(span, start=places[span.start], end=places[span.end])

    rest = Segment("".join(written), tuple(map(moved, spans)))
    return rest, [(moved(place), x) for place, x in asides]


def _corrections(text: str, forms: WordForms) -> Iterator[tuple[int, int, str]]:
    """Yields the start and end of what is typed in another way than in the training text."""
    if not forms.has_words:
        return
    for x in SPACED_MARK.finditer(text):
        if forms.lacks(f" {x[1][0]}"):
            yield *x.span(), ""
    for x in _JOINED.finditer(text):
        if all(forms.knows(word) or forms.knows(word.lower()) for word in x.captures("word")):
            yield *x.span(), f"{x[0]} "
    for x in _WORD.finditer(text):
        if (new := forms.respelled(x[0])) and (text.isupper() or not x[0].isupper()):
            yield *x.span(), new
