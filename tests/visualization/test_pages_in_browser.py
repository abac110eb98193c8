"""How pages look in headless Chromium on a wide and a narrow screen, in light and dark colours."""

import pytest
from support.attention_examples import attention_example

from keras_transformer import SearchOptions
from keras_transformer.formats.engines import open_translator
from keras_transformer.visualization import attention_page, beam_page
from keras_transformer.visualization.report import run_report

pytestmark = pytest.mark.slow
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 25, 30)"}
# The page, and each part of it that would scroll, but for heat maps and code.
TOO_WIDE = """[document.documentElement, ...document.querySelectorAll(".scroll, svg, #drawing")]
  .filter((x) => !x.closest(".heat") && !x.querySelector(".heat") &&
    (x.scrollWidth > x.clientWidth || x.getBoundingClientRect().right > innerWidth))
  .map((x) => x.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def texts(made):
    translator = open_translator(made, SearchOptions(beam_size=5, max_length=20, min_length=18))
    return {
        "attention": attention_page(attention_example()),
        "beam": beam_page(translator.beam_tree("a b c d e f")),
        "report": run_report(made),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", ["attention", "beam", "report"])
def test_a_page_fits_the_screen_and_has_its_colours(browser, texts, tmp_path, name, width, scheme):
    path = tmp_path / "page.html"
    path.write_text(texts[name], encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    if name == "attention":
        page.wait_for_selector("body[data-ready]")
    page.evaluate("document.querySelectorAll('details').forEach((x) => (x.open = true))")
    assert page.evaluate(TOO_WIDE) == []
    colour = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(colour.format("body", "backgroundColor")) == BACKGROUNDS[scheme]
    if name == "attention":
        fill = page.evaluate(colour.format("#drawing svg > rect", "fill"))
        assert fill == BACKGROUNDS[scheme]
    context.close()
