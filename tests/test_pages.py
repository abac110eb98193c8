"""Pages escape all text, and notebooks show them."""

from support.html_page import Page

from keras_transformer._pages import _TEMPLATES, render

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
