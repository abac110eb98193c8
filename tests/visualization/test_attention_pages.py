"""Pages and pictures of attention.

The page is one file that asks no one, escapes all text and holds the weights of the model.
`test_attention_in_browser.py` looks at what it draws.
"""

import base64
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest
from support.attention_examples import SOURCE, attention_example

from keras_transformer.errors import UserError
from keras_transformer.visualization.attention_pages import (
    attention_image,
    attention_page,
    attention_svg,
    png_from_svg,
)

SIZE_LIMIT = 1_000_000


def data_of(page):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(data)


def weights_of(page):
    (text,) = re.findall(r'<script type="text/plain" id="weights">([^<]*)</script>', page)
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2") / 65535


def test_the_weights_in_the_page_are_those_of_the_model():
    example = attention_example()
    page = attention_page(example)
    data = data_of(page)
    expected = np.concatenate([each.weights.ravel() for each in example.maps])
    np.testing.assert_allclose(weights_of(page), expected, rtol=0, atol=1e-5)
    assert data["maps"][1] == {"name": "layer_1/encoder", "kind": "encoder", "heads": 3}
    assert data["tokens"]["cross"] == [*map(list, example.tokens["cross"])]
    assert data["alignment"] == "0-1 2-0"


def test_nothing_of_the_sentence_is_markup():
    example = attention_example()
    page = attention_page(example)
    assert data_of(page)["texts"] == example.texts
    assert page.count("<script") == page.count("</script>") == 3
    assert "<title>Attention: 나는 &lt;script&gt;alert(1)&lt;/script&gt; &amp;amp; 갔습니다" in page
    assert data_of(attention_page(attention_example(["{{ title }}", "</s>"])))


def test_a_page_of_a_long_sentence_is_small():
    words = [f"▁word{i}" for i in range(60)] + ["</s>"]
    # Heads that are neither sharp nor even need the most bytes.
    page = attention_page(attention_example(words, words, layers=6, heads=8, sharpness=2.0))
    assert len(page.encode()) <= SIZE_LIMIT


SVG = "{http://www.w3.org/2000/svg}"


def pixels_of(image):
    """The colours of an image of a picture, (height, width, 3)."""
    png = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", png[16:24])
    rows = zlib.decompress(png[png.index(b"IDAT") + 4 : -16])
    return (
        np.frombuffer(rows, "uint8").reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)
    )


def test_the_image_of_all_heads_has_squares_of_8_pixels():
    example = attention_example()
    weights = example.maps[-1].weights[0, 2]
    queries, keys = (8 * size + 1 for size in weights.shape)
    image = attention_image(example, "cross")
    assert (image.dtype, image.shape) == ("uint8", (2 * queries, 3 * keys, 3))
    squares = image[queries : 2 * queries - 1, 2 * keys : -1, 0]  # layer 2, head 3
    red = np.interp(weights, [0, 1 / 3, 2 / 3, 1], [255, 158, 49, 8])
    np.testing.assert_allclose(squares, np.kron(red, np.ones((8, 8))), atol=1.5)


def test_one_head_is_a_heat_map_with_its_tokens():
    example = attention_example()
    svg = ElementTree.fromstring(attention_svg(example, layer=2, head=3))
    texts = ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]
    assert texts[0] == "Cross-attention, layer 2, head 3"
    assert texts[1:12] == ["", *example.tokens["cross"][0], *SOURCE]
    weights, pixels = example.maps[-1].weights[0, 2], pixels_of(next(svg.iter(f"{SVG}image")))
    assert pixels.shape == (*weights.shape, 3)
    # The red of the colours falls from 255 at weight 0 over 158 at 1/3 and 49 at 2/3 to 8 at 1.
    red = np.interp(weights, [0, 1 / 3, 2 / 3, 1], [255, 158, 49, 8])
    np.testing.assert_allclose(pixels[..., 0], red, atol=1.5)


def test_every_token_can_be_drawn():
    tokens = ["▁", "\0\x1f\uffff", "می\u200cخواهم", "x" * 99, "<&>\"'"]
    svg = attention_svg(attention_example(tokens, tokens), layer=1, head=1)
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert texts[2:7] == [tokens[0], "\ufffd" * 3, *tokens[2:]]


def test_all_heads_have_a_small_heat_map_with_their_entropy():
    svg = ElementTree.fromstring(attention_svg(attention_example()))
    assert len(list(svg.iter(f"{SVG}image"))) == 3 * 2 * 3  # kinds, layers, heads
    assert attention_svg(attention_example(), kind="decoder").count("<image") == 2 * 3
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert sum(bool(re.fullmatch(r"\d\.\d\d", text)) for text in texts) == 18


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"kind": "other"}, "one of .'encoder', 'decoder', 'cross'"),
        ({"head": 1}, "must be 1 to 2 .* layer=None"),
        ({"layer": 1, "head": 4}, "must be 1 to 2 .* 1 to 3"),
    ],
)
def test_what_the_model_does_not_have_is_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        attention_svg(attention_example(), **wrong)


def test_png_is_drawn_without_a_browser():
    pytest.importorskip("resvg_py", reason="resvg_py is an optional dependency")
    svg = attention_svg(attention_example(), layer=1, head=1)
    png = png_from_svg(svg)
    assert png.startswith(b"\x89PNG") and min(struct.unpack(">II", png[16:24])) > 300
    without_text = png_from_svg(re.sub("<text.*?</text>", "", svg))
    assert len(png) > 1.5 * len(without_text)
