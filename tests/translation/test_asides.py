"""Parts in brackets are taken out of a text, with their markup."""

import pytest

from keras_transformer.translation import Segment, Span
from keras_transformer.translation.asides import has_asides, without_asides
from keras_transformer.translation.markup import write


@pytest.mark.parametrize(
    ("text", "rest", "asides"),
    [
        ("A (b (c)) d [1].", "A d.", ["(b (c))", "[1]"]),
        ("(A) b", " b", ["(A)"]),
        ("a\n(b) c", "a c", ["(b)"]),
        ("(a) (b)", "(a) (b)", []),
        ("f(x) a(s) (b)c d(", "f(x) a(s) (b)c d(", []),
    ],
)
def test_parts_in_brackets_with_space_before_them_are_taken_out(text, rest, asides):
    found, own = without_asides(Segment(text))
    assert (found.text, [x.text for _, x in own]) == (rest, asides)
    assert has_asides(text) or not asides
    spans = tuple(Span(x.start, x.end, before=x.before + y.text) for x, y in own)
    assert write(Segment(found.text, spans)) == text


def test_markup_goes_with_its_part_and_does_not_cross_its_edge():
    bold = Span(4, 5, "<b>", "</b>")
    whole = Span(0, 9, "<p>", "</p>")
    found, ((place, own),) = without_asides(
        Segment("a (xy z) b", (whole, Span(3, 5, "<b>", "</b>")))
    )
    assert found == ("a b", (Span(0, 2, "<p>", "</p>"),))
    assert own == ("(xy z)", (Span(1, 3, "<b>", "</b>"),)) and place == Span(1, 1, " ")
    crossing = Segment("a (x y) b", (Span(5, 9, "<b>", "</b>"),))
    assert without_asides(crossing) == (crossing, []) and bold
