"""Pages escape all text."""

from support.html_page import read_page

from keras_transformer.visualization.report_page import (
    details,
    element,
    note,
    page,
    table,
    tokens_html,
)

HOSTILE = "<script>alert('1')</script> & \" </td>"


def test_text_and_attributes_are_escaped():
    tokens = tokens_html([(f"▁{HOSTILE}", 0.25), ("▁b", 1.0), ("c", 1.0)])
    parts = [
        element("p", HOSTILE, title=HOSTILE),
        table([HOSTILE], [[HOSTILE]]),
        note(HOSTILE, HOSTILE),
        details(HOSTILE, tokens),
    ]
    found = read_page(page(HOSTILE, parts))
    assert found.texts("title") == [HOSTILE] == found.texts("th") == found.texts("td")
    assert found.texts("p") == [HOSTILE, f"{HOSTILE} {HOSTILE}"]
    assert found.values("p", "title") == [HOSTILE]
    assert found.texts("bdi") == [f"{HOSTILE} bc"]
    assert found.values("span", "title") == ["0.2500", "1.0000", "1.0000"]


def test_numbers_of_a_table_are_aligned_and_grouped():
    rows = [["a", 12345, 1.2345]]
    found = read_page(page("", [table(["name", "count", "score"], rows)]))
    assert found.texts("td", **{"class": "number"}) == ["12,345", "1.23"]


def test_wide_content_scrolls_by_keyboard():
    found = read_page(page("", [table(["a"], [["b"]])]))
    assert found.values("div", "tabindex") == ["0"]
