"""Marks that the training text lacks are taken out of a text, and parts in brackets or speech."""

from dataclasses import replace

import pytest

from keras_transformer.translation import Segment, Span, WordForms
from keras_transformer.translation.markup import write
from keras_transformer.translation.unread_marks import without_entities, without_marks

FORMS = WordForms(("Tom",), ".", words=("a",))


@pytest.mark.parametrize(
    ("text", "rest", "asides"),
    [
        ("A (b (c)) d [1].", "A d.", ["b (c)", "1"]),
        ("(Aa) b (c)", " b (c)", ["Aa"]),
        ("a\n(bb) c", "a c", ["bb"]),
        ("(aa) «b!»", "", ["aa", "b!"]),
        ('<p>A <b>"b"</b><br/>c < d</p> <i>x</p>', "A b<br/>c < d <i>x", []),
        ('`a("b")` {n, plural, one {# (c)}} {{ "d" }} a_b_c', None, []),
        ("<everyday> A<br>b <img src='x'>", "<everyday> A<br>b ", []),
        ("&Open _as _b_ &c; d&e f_g", "Open as b &c; d&e f_g", []),
        ("*a 'b' (cc) d*", "a b d", ["cc"]),
        ('"a","b c","5"', ",,", ["a", "b c", "5"]),
        ('{"a": "B c", "d": ["e"]} f = "g"', '{"a":, "d":} f =', ["B c", '"e"', "g"]),
        ("so\xadlu\xadtion", "solution", []),
        ("A – b c – d - E - f — g", "A d - E - f — g", [" b c "]),
        ("A -- b -- d", "A d", [" b "]),
        ('Tom said, "Go!" “Yes,” he «x» „y“.', "Tom said, he x y.", ["Go!", "Yes,"]),
        ("[a](b/c) [d (ee) f](g) <0>h</0> <1/>", "a d f h ", ["ee"]),
        ("[b]a[/b] [i=1]b[/i] '''c''' \\emph{d} \\note{E.} [x] f", "a b c d [x] f", ["E."]),
        ('[[a|b]] (555) 12-3456 {{#if "a"}}', None, []),
        ("**a!** _b_ *c* 'd e' \"f\" ‘g’s h’", "a! b c d e f g’s h", []),
        ("f(x) a(s) (b)c d( 2 * 3 * 4 a_b_c it's dogs' 5\" 6\"", None, []),
    ],
)
def test_marks_that_are_around_something_are_taken_out(text, rest, asides):
    found, own = without_marks(Segment(text), FORMS)
    assert (found.text, [x.text for _, x in own]) == (text if rest is None else rest, asides)
    places = (replace(x, before=x.before + y.text) for x, y in own)
    assert write(Segment(found.text, (*found.spans, *places))) == text.replace("\xad", "")
    for other in (WordForms(), replace(FORMS, marks='(["“„«‘*_–-\xad<&\\')):
        assert without_marks(Segment(text), other) == (Segment(text), [])


def test_entities_are_read_as_their_characters():
    text = "Tom &amp; Mary don&#39;t &lt;3 &#x263a;"
    found, table = without_entities(text)
    assert found == "Tom & Mary don't <3 \u263a" and found.translate(table) == text
    for text in "<b>a</b> &lt; b &amp;", "a &b; &amp;", "a & b":
        assert without_entities(text) == (text, {})


def test_markup_goes_with_its_part_and_does_not_cross_its_edge():
    segment = Segment("a (xy z) b", (Span(0, 10, "<p>", "</p>"), Span(3, 5, "<b>", "</b>")))
    found, ((place, own),) = without_marks(segment, FORMS)
    assert found == ("a b", (Span(0, 3, "<p>", "</p>"),))
    assert own == ("xy z", (Span(0, 2, "<b>", "</b>"),)) and place == Span(1, 1, " (", ")")
    around = Segment("a (bb) [] c", (Span(2, 6, "<b>", "</b>"),))
    _, ((_, own),) = without_marks(around, FORMS)
    assert own == ("bb", (Span(0, 2, "<b>", "</b>"),))
    after = Segment("a (bb) c", (Span(6, 6, "<br>"),))
    found, ((_, own),) = without_marks(after, FORMS)
    assert found.spans == (Span(1, 1, "<br>"),) and own == ("bb", ())
    at_end = Segment('a bb c "D e?" f', (Span(2, 13, "<b>", "</b>"),))
    found, ((place, own),) = without_marks(at_end, FORMS)
    assert found == ("a bb c f", (Span(2, 6, "<b>", "</b>"),))
    assert own.text == "D e?" and place == Span(5, 6, ' "', '"')  # within the markup
    crossing = Segment("a (x y) b", (Span(5, 9, "<b>", "</b>"),))
    assert without_marks(crossing, FORMS) == (crossing, [])
    quoted, _ = without_marks(Segment('a "b" c'), FORMS, lambda x: f"&{x}")
    dashed, ((place, _),) = without_marks(Segment("a—b—c"), FORMS)
    assert dashed.text == "a c" and place == Span(1, 1, " — ", " —")
    assert quoted == ("a b c", (Span(2, 3, '&"', '&"'),))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Is it ? Yes , a  !! A : b", "Is it? Yes, a!! A: b"),
        ("so,a 2,3 so,3 a.b Go.A go.Be Go!Go is.Go", "so, a 2,3 so, 3 a.b Go.A go.Be Go! Go is.Go"),
        ("It is.A `so,a` well ... :) you, 世界,世界", "It is.A `so,a` well ... :) you, 世界,世界"),
        ("dont Dont don't DONT", "don't Don't don't DONT"),
        ("I DONT GO", "I DON'T GO"),
    ],
)
def test_what_is_typed_in_a_hurry_is_read_as_the_training_text_is(text, read):
    forms = replace(FORMS, words=("a", "go"), contractions=("don't",))
    found, own = without_marks(Segment(text, (Span(3, len(text)),)), forms)
    assert (found.text, own) == (read, [])
    assert found.spans[0].end == len(read)
    assert without_marks(Segment(text), WordForms()) == (Segment(text), [])
