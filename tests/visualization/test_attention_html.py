"""The page is one file that asks no one, escapes all text and holds the weights of the model.

`test_attention_in_browser.py` looks at what it draws.
"""

import base64
import json
import re
import zlib

import numpy as np
from support.attention_examples import attention_example

from keras_transformer.visualization.attention_pages import attention_page

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
