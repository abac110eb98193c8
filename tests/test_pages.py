"""Pages escape all text, notebooks show them, and the axes of a chart enclose its numbers."""

import numpy as np
import pytest
from support.html_page import Page

from keras_transformer._pages import _TEMPLATES, bar_chart, line_chart, render, ticks

HOSTILE = "<script>alert('1')</script> & \" </td>"
PARTS = _TEMPLATES.get_template("parts.html").module


def test_text_and_attributes_are_escaped():
    tokens = Page(PARTS.tokens([(f"▁{HOSTILE}", 0.25), ("▁b", 1.0), ("c", 1.0)]))
    assert tokens.texts("bdi") == [f"{HOSTILE} bc"]
    assert tokens.values("span", "title") == ["0.2500", "1.0000", "1.0000"]
    table = Page(PARTS.table([HOSTILE], [[HOSTILE]]))
    assert [HOSTILE] == table.texts("th") == table.texts("td")
    assert Page(PARTS.note(HOSTILE, HOSTILE)).texts("p") == [f"{HOSTILE} {HOSTILE}"]
    assert Page(render("base.html", title=HOSTILE)).texts("title") == [HOSTILE]


def test_numbers_of_a_table_are_aligned_and_grouped_and_wide_tables_scroll_by_keyboard():
    found = Page(PARTS.table(["name", "count", "score"], [["a", 12345, 1.2345]]))
    assert found.texts("td", **{"class": "number"}) == ["12,345", "1.23"]
    assert found.values("div", "tabindex") == ["0"]


def test_a_notebook_shows_a_page_in_a_frame():
    page = render("base.html", title=HOSTILE)
    frame = Page(page._repr_html_())
    assert frame.values("iframe", "srcdoc") == [page]
    assert repr(page) == f"<page of {len(page):,} characters>"


def drawn(chart):
    return Page((PARTS.bar_chart if "bars" in chart else PARTS.line_chart)(chart))


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((0, 12000), [0, 2500, 5000, 7500, 10000, 12500]),
        ((3.2, 3.9), [3.2, 3.4, 3.6, 3.8, 4.0]),
        ((-1, 1), [-1, -0.5, 0, 0.5, 1]),
        ((0, 0), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ((3.4, 110, True), [2, 5, 10, 20, 50, 100, 200]),
        ((0.2, 0.2, True), [0.2]),
    ],
)
def test_ticks_are_round_and_enclose_the_numbers(arguments, expected):
    assert ticks(*arguments) == pytest.approx(expected)


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_points_are_exact_and_inside_the_axes(is_logarithmic):
    lines = {"a": {10: 1 / 3, 20: 7.25}, "<b>": {20: 1e-3, 30: 5.0}}
    page = drawn(line_chart("Loss", "nats", lines, is_logarithmic))
    steps = [int(x) for x in page.values("circle", "data-x")]
    values = [float(x) for x in page.values("circle", "data-y")]
    assert list(zip(steps, values, strict=True)) == [(10, 1 / 3), (20, 7.25), (20, 1e-3), (30, 5.0)]
    assert all(0 < float(x) < 460 for x in page.values("circle", "cx"))
    assert all(0 < float(y) < 250 for y in page.values("circle", "cy"))
    assert "<b>, step 20: 0.001" in page.texts("title")
    heights = [float(y) for y in page.values("circle", "cy")]
    assert sorted(values, reverse=True) == [values[i] for i in np.argsort(heights)]


def test_a_line_has_the_colour_of_its_place_and_a_name_also_beside_an_empty_line():
    page = drawn(line_chart("Loss", "nats", {"a": {}, "b": {10: 1.0}}))
    assert page.values("g", "class") == ["second"]
    assert page.texts("title") == ["b, step 10: 1"]
    assert page.texts("span") == ["a", "b"]


def test_bars_have_the_heights_of_their_numbers():
    page = drawn(bar_chart("BLEU", "", ["1-5", "6-10"], {"a": [10.0, 20.0], "b": [0.0, 5.0]}))
    assert [float(y) for y in page.values("rect", "data-y")] == [10, 20, 0, 5]
    heights = [float(x) for x in page.values("rect", "height")]
    assert heights == pytest.approx([heights[1] / 2, heights[1], 0, heights[1] / 4], abs=0.2)
