"""Spans of a source in its translation."""

import random
import re

import numpy as np
import pytest
from support.html_page import Page

from keras_transformer.translation.alignment import TokenAlignment
from keras_transformer.translation.markup import Segment, Span, project

TOKEN = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
WORDS = "Tom and his dog, who is old, went to the (big) garden of Mary's aunt yesterday .".split()


def spans_of(text, source):
    return [x.span() for x in source.finditer(text)]


def random_spans(rng, tokens, low, high, found, depth=0):
    while low < high and rng.random() < 0.6 and depth < 3:
        first = rng.randrange(low, high)
        last = rng.randint(first, high)
        start, end = tokens[first][0], tokens[last - 1][1] if last > first else tokens[first][0]
        name = f"{'abiu'[depth]}{len(found)}"
        found.append(Span(start, end, f"<{name}>", f"</{name}>"))
        random_spans(rng, tokens, first, last, found, depth + 1)
        low = last if last > first else first + 1


def test_any_tags_and_any_attention_give_a_tree_that_has_each_tag_once():
    rng = random.Random(0)
    for number in range(3_000):
        source, target = (" ".join(rng.sample(WORDS, rng.randint(1, 9))) for _ in range(2))
        tokens, of_target = spans_of(source, TOKEN), spans_of(target, TOKEN)
        spans = []
        random_spans(rng, tokens, 0, len(tokens), spans)
        if number % 3 == 0:  # spans that cross, and parts that are replaced
            ends = (sorted(rng.choices(range(len(source) + 1), k=2)) for _ in range(3))
            crossing = [Span(*x, f"<x{n}>", f"</x{n}>") for n, x in enumerate(ends)]
            start, end = rng.choice(tokens)
            spans += [*crossing, Span(start, end, "<y>", "</y>", replacement="QQ")]
        shares = np.random.default_rng(number).dirichlet(np.ones(len(tokens)), len(of_target))
        alignment = TokenAlignment(tokens, of_target, shares)
        found = project(Segment(source, tuple(spans)), target, alignment)
        page = Page(f"<p>{found}</p>")  # if this is a tree
        names, (text,) = sorted(name for name, *_ in page.elements), page.texts("p")
        expected = sorted(["p", *re.findall(r"<(\w+)>", "".join(x.before for x in spans))])
        same = "".join(text.split()) == "".join(target.split())  # Elements keep their spaces.
        is_text = text.count("QQ") == 1 if number % 3 == 0 else same
        assert names == expected and is_text, (source, spans, found)


def projected(source, target, links):
    """Projects the tags of a source; `links` has the source word of each target word."""
    text, spans, opened = "", [], []
    for piece in re.split(r"(</?\w+>)", source):
        if piece.startswith("</"):
            start, tag = opened.pop()
            spans.append(Span(start, len(text), tag, piece))
        elif piece.startswith("<"):
            opened.append((len(text), piece))
        else:
            text += piece
    spans.reverse()  # outer ones first
    places = [spans_of(x, re.compile(r"\w+")) for x in (text, target)]
    shares = np.zeros((len(places[1]), len(places[0])))
    shares[np.arange(len(links)), links] = 1
    return project(Segment(text, tuple(spans)), target, TokenAlignment(*places, shares))


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        # A mark belongs to a tag if the source has it there, and so does a quotation mark.
        ("I <b>see.</b>", "Ich sehe.", [0, 1], "Ich <b>sehe.</b>"),
        ("I <b>see</b>.", "Ich sehe.", [0, 1], "Ich <b>sehe</b>."),
        ('A <b>"big"</b> dog', "Ein „großer“ Hund", [0, 1, 2], "Ein <b>„großer“</b> Hund"),
        ('A "<b>big</b>" dog', "Ein „großer“ Hund", [0, 1, 2], "Ein „<b>großer</b>“ Hund"),
        # The larger part of a verb in two parts.
        ("I <b>get up</b> now", "Ich stehe jetzt auf", [0, 1, 3, 2], "Ich <b>stehe</b> jetzt auf"),
        # Two tags never overlap, also if both attend to the same word.
        ("<b>red</b> <i>car</i>", "Rotwagen", [0], "<b>Rotwagen</b><i></i>"),
        # A tag whose words no word attends to gets one beside others.
        ("<b>a</b> c <i>b</i>", "C B", [1, 2], "<b>C</b> <i>B</i>"),
        # A mark alone.
        ("Go <b>→</b> on", "Weiter → so", [0, 1], "Weiter <b>→</b> so"),
        ("<b>Who</b> is it", "¿Quién es", [0, 1], "<b>¿Quién</b> es"),
    ],
)
def test_a_tag_is_where_its_words_are(source, target, links, expected):
    assert projected(source, target, links) == expected


def test_text_is_escaped_but_markup_is_not():
    alignment = TokenAlignment([(0, 1), (4, 5)], [(0, 1), (4, 5)], np.eye(2))
    spans = Span(0, 1, "<a>", "</a>"), Span(4, 5, replacement="<code>&lt;</code>")
    found = project(Segment("A < B", spans), "A < B", alignment, lambda x: x.replace("<", "&lt;"))
    assert found == "<a>A</a> &lt; <code>&lt;</code>"


def test_a_stand_in_outside_of_the_markup_around_it_is_moved_into_it():
    texts = "The old Tom house burns", "Das alte Haus brennt Tom"
    places = [spans_of(x, re.compile(r"\w+")) for x in texts]
    shares = np.eye(5)[[0, 1, 3, 4, 4]]
    segment = Segment(texts[0], (Span(4, 17, "<b>", "</b>"), Span(8, 11, replacement="{x}")))
    found = project(segment, texts[1], TokenAlignment(*places, shares))
    assert found == "Das <b>alte {x} Haus</b> brennt"


def test_a_part_in_brackets_has_its_space_on_the_other_side_where_a_text_begins():
    places = [(0, 1), (2, 3), (4, 5)]
    alignment = TokenAlignment(places, places, np.eye(3)[[1, 2, 0]])
    segment = Segment("a b c", (Span(1, 1, after=" (x)"),))
    assert project(segment, "b c a", alignment) == "(x) b c a"


def test_two_parts_at_one_place_are_apart():
    alignment = TokenAlignment([(0, 1), (2, 5), (6, 7)], [(0, 3)], np.array([[0, 1.0, 0]]))
    spans = Span(0, 1, replacement="`a`"), Span(6, 7, replacement="`b`")
    assert project(Segment("a and b", spans), "und", alignment) == "`a` `b`"


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("I know Tom well", "Ich kenne Toms", "Ich kenne {x}"),
        # The replacement is there already.
        ("I know Tom well", "Wohl, {x}, kenne ich", "Wohl, {x}, kenne ich"),
    ],
)
def test_a_stand_in_is_found_by_its_name_whatever_the_attention_says(text, target, expected):
    places = [spans_of(x, re.compile(r"\w+")) for x in (text, target)]
    shares = np.zeros((len(places[1]), len(places[0])))
    shares[0, 2] = 1
    segment = Segment(text, (Span(7, 10, replacement="{x}"),))
    assert project(segment, target, TokenAlignment(*places, shares)) == expected
