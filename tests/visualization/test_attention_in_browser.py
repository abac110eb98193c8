"""What the page of `attention_page` draws in headless Chromium, for pointer and keyboard."""

import json
import struct

import numpy as np
import pytest
from support.attention_examples import SOURCE, TARGET, attention_example

from keras_transformer.visualization.attention_pages import attention_page

pytestmark = pytest.mark.slow
CROSS = -1  # the map of the last layer


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens the page of an example from a file. Requests and errors of the page fail the test."""
    problems, contexts = [], []

    def open_page(example, width=1000, notebook=False):
        path = tmp_path / "page.html"
        text = f"<body data-ready>{example._repr_html_()}" if notebook else attention_page(example)
        path.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on(
            "request",
            lambda request: request.url.startswith(("http", "ws")) and problems.append(request.url),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def choose(page, **options):
    for name, value in options.items():
        # A string would also match the label of an option, and labels count from 1.
        option = {"index": value} if isinstance(value, int) else {"value": value}
        page.select_option(f"#{name}", **option)


def saved(page, button):
    with page.expect_download() as download:
        page.click(button)
    return download.value


def opacities(page, row):
    """The opacities of the visible lines of a query, by key."""
    lines = page.locator(f'.line[data-row="{row}"][visibility="visible"]').all()
    found = {int(x.get_attribute("data-column")): x.get_attribute("stroke-opacity") for x in lines}
    return [float(found.get(key, 0)) for key in range(len(SOURCE))]


def test_hover_shows_what_a_token_attends_to(open_page):
    example = attention_example()
    page = open_page(example)
    choose(page, kind="cross", layer=1, head=2)
    page.hover('[data-side=query][data-index="1"]')
    weights = example.maps[CROSS].weights[0, 2, 1]
    np.testing.assert_allclose(opacities(page, 1), weights, rtol=0, atol=0.5 / 255 + 1e-5)
    assert page.locator('.line[visibility="visible"]:not([data-row="1"])').count() == 0
    best = weights.argmax()
    status = page.inner_text("#status")
    assert status.startswith(f"{TARGET[1]} attends to {SOURCE[best]} {weights[best]:.3f}")
    page.hover("h1")
    assert page.inner_text("#status") == ""
    choose(page, head="mean")
    page.click('[data-side=key][data-index="0"]')
    page.hover("h1")  # The token that was clicked stays selected.
    mean = example.maps[CROSS].weights[0].mean(axis=0)[:, 0]
    assert f"{mean.max():.3f}" in page.inner_text("#status")


def test_heat_map_and_all_heads_have_the_colours_of_the_weights(open_page):
    example = attention_example()
    page = open_page(example)
    choose(page, kind="cross")
    page.check("[name=view][value=all]")
    assert page.locator("#drawing image").count() == 3
    assert page.locator("#drawing text", has_text=SOURCE[0]).count() == 3
    choose(page, layer="every")
    assert page.locator("#drawing image").count() == 2 * 3
    page.click('[data-layer="1"][data-head="2"]')
    assert page.inner_text("#caption").startswith("Cross-attention, layer 2, head 3.")
    pixels = page.evaluate("""async () => {
        const image = new Image();
        image.src = document.querySelector("#drawing image").getAttribute("href");
        await image.decode();
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.width, image.height];
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        return Array.from(context.getImageData(0, 0, image.width, image.height).data);
    }""")
    weights = example.maps[CROSS].weights[0, 2]
    red = np.interp(weights, [0, 1 / 3, 2 / 3, 1], [255, 158, 49, 8])
    np.testing.assert_allclose(np.reshape(pixels, (*weights.shape, 4))[..., 0], red, atol=1.5)
    cells = page.locator("#cells").bounding_box()
    page.mouse.move(cells["x"] + 2, cells["y"] + cells["height"] - 2)
    assert page.inner_text("#status").startswith(f"{TARGET[-1]} attends to")
    assert f"(weight of {SOURCE[0]}: {weights[-1, 0]:.3f})" in page.inner_text("#status")


def test_the_keyboard_alone_reaches_everything(open_page):
    page = open_page(attention_example())
    page.keyboard.press("Tab")
    page.keyboard.type("Cross")
    assert page.input_value("#kind") == "cross"
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#status").startswith(f"{TARGET[1]} attends to")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#status").startswith(f"{SOURCE[1]} is attended to by")
    page.keyboard.press("Escape")
    assert page.inner_text("#status") == ""
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#status").startswith("layer 2, head 2: entropy")
    page.keyboard.press("Enter")
    assert page.inner_text("#caption").startswith("Cross-attention, layer 2, head 2.")


def test_rollout_is_that_of_python(open_page):
    from keras_transformer.visualization.attention import attention_rollout

    example = attention_example()
    page = open_page(example)
    choose(page, kind="encoder", layer="rollout")
    expected = attention_rollout([each for each in example.maps if each.kind == "encoder"])[0, 1]
    page.hover('[data-side=query][data-index="1"]')
    np.testing.assert_allclose(opacities(page, 1), expected, rtol=0, atol=0.5 / 255 + 1e-5)


def test_saved_files_are_what_is_shown_and_what_the_model_computed(open_page, tmp_path):
    example = attention_example()
    page = open_page(example)
    choose(page, kind="decoder", layer=1, head=0)
    page.check("[name=view][value=heat]")
    svg = saved(page, "#save-svg")
    assert svg.suggested_filename == "attention-decoder-layer-2-head-1.svg"
    assert 'xmlns="http://www.w3.org/2000/svg"' in svg.path().read_text(encoding="utf-8")
    png = saved(page, "#save-png").path().read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (
        3 * int(page.get_attribute("#drawing svg", "width")),
        3 * int(page.get_attribute("#drawing svg", "height")),
    )
    data = json.loads(saved(page, "#save-json").path().read_text(encoding="utf-8"))
    assert data["texts"] == example.texts and data["alignment"] == "0-1 2-0"
    assert data["wordScores"] == [-0.1, -2.3, 0.0]
    titles = [x.get_attribute("title") for x in page.locator("#texts span").all()]
    assert [x[:3].strip() for x in titles] == ["90", "10", "100"]
    for each, expected in zip(data["maps"], example.maps, strict=True):
        assert (each["name"], each["kind"]) == (expected.name, expected.kind)
        np.testing.assert_allclose(each["weights"], expected.weights[0], rtol=0, atol=1e-5)


def test_a_notebook_shows_the_page_and_its_scripts_run(open_page):
    frame = open_page(attention_example(), notebook=True).frame_locator("iframe")
    assert frame.locator("#kind").input_value() == "cross"
    frame.locator("[data-side=query]").first.hover()
    assert frame.locator("#status").inner_text().startswith(f"{TARGET[0]} attends to")
    frame.locator("[value=all]").check()
    assert frame.locator("#drawing image").count() == 3
