"""Pictures of attention for papers and reports: heat maps as SVG or PNG."""

import base64
import importlib.util
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from keras_transformer._png import png
from keras_transformer.errors import UserError
from keras_transformer.layers.attention.scaled_dot_product_attention import AttentionKind
from keras_transformer.visualization.attention_example import AttentionExample
from keras_transformer.visualization.attention_weights import head_entropy
from keras_transformer.visualization.pages import render

_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
_NOT_IN_XML = re.compile("[\0-\x1f\ufffe\uffff]")
# White to dark blue, at the weights 0, 1/3, 2/3 and 1.
_COLOURS = np.array([[255, 255, 255], [158, 202, 225], [49, 130, 189], [8, 48, 107]])
_CELL, _THUMBNAIL, _GAP, _LEFT = 22, 80, 6, 34
_SQUARE = 8


def attention_svg(
    example: AttentionExample,
    kind: AttentionKind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """Draws the heat map of one head with its tokens, or small heat maps of all heads, as SVG.

    Args:
        example: The attention maps and their tokens.
        kind: `"encoder"`, `"decoder"` or `"cross"`. Defaults to None, which means all kinds for
            small heat maps and the last kind of the example for a single head.
        layer: Number of the layer among those of its kind, from 1. Defaults to None, which means
            all heads of all layers.
        head: Number of the head, from 1. Required if `layer` is given.

    Returns:
        The text of an SVG file.

    Raises:
        UserError: If there is no such kind, layer or head, or if only one of `layer` and `head` is
            given.
    """
    if kind is not None and kind not in example.kinds:
        raise UserError(f"kind must be one of {example.kinds}. Received: kind={kind}")
    if (layer is None) != (head is None):
        raise UserError(
            f"layer and head must be given together. Received: layer={layer}, head={head}"
        )
    if layer is None or head is None:
        return _all_heads(example, example.kinds if kind is None else [kind])
    kind = kind or example.kinds[-1]
    layers = example.layers(kind)
    if not 1 <= layer <= len(layers) or not 1 <= head <= len(layers[layer - 1]):
        heads = len(layers[0])
        raise UserError(
            f"layer must be 1 to {len(layers)} and head 1 to {heads} for the kind {kind}. "
            f"Received: layer={layer}, head={head}"
        )
    title = f"{_TITLES[kind]}, layer {layer}, head {head}"
    matrix = layers[layer - 1][head - 1]
    return _one_head(matrix, *example.tokens[kind], title, example.special_tokens)


def attention_image(example: AttentionExample, kind: AttentionKind) -> np.ndarray:
    """Draws small heat maps of all heads of one kind, without text: a layer a row, a head a column.

    Each weight is a square of 8 pixels.

    Args:
        example: The attention maps and their tokens.
        kind: One of `example.kinds`.

    Returns:
        uint8 array `(height, width, 3)`.
    """
    layers = example.layers(kind)
    queries, keys = (_SQUARE * len(tokens) + 1 for tokens in example.tokens[kind])
    shape = queries * len(layers), keys * max(map(len, layers)), 3
    image = np.full(shape, 187, "uint8")  # The frames between the heat maps are grey.
    for row, heads in enumerate(layers):
        for column, weights in enumerate(heads):
            squares = _colours(weights).repeat(_SQUARE, axis=0).repeat(_SQUARE, axis=1)
            y, x = queries * row, keys * column
            image[y : y + queries - 1, x : x + keys - 1] = squares
    return image


def png_from_svg(svg: str) -> bytes:
    """Converts a picture to PNG, at 3 pixels per SVG unit.

    Raises:
        UserError: If the package resvg_py is not installed.
    """
    check_png()
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=3))


def check_png() -> None:
    """Raises `UserError` if the package resvg_py is not installed."""
    if importlib.util.find_spec("resvg_py") is None:
        raise UserError(
            "PNG files need the package resvg_py: pip install 'keras3-transformer[visualization]', "
            "or write an SVG file"
        )


class _Drawing:
    """The heat maps and texts of a picture. `templates/attention.svg` draws them."""

    def __init__(self) -> None:
        self.maps: list[tuple[float, float, float, float, str]] = []
        self.texts: list[tuple[float, float, str, str, str]] = []

    def map(self, matrix: np.ndarray, x: float, y: float, width: float, height: float) -> None:
        image = base64.b64encode(png(_colours(matrix))).decode()
        self.maps.append((x, y, width, height, image))

    def text(self, text: str, x: float, y: float, style: str, anchor: str = "start") -> None:
        """Adds a text. `anchor` is "start", "middle", "end" or "upwards"."""
        self.texts.append((x, y, _NOT_IN_XML.sub("\ufffd", text), style, anchor))

    def svg(self, width: float, height: float) -> str:
        size = {"width": round(width), "height": round(height)}
        return render("attention.svg", maps=self.maps, texts=self.texts, **size)


def _all_heads(example: AttentionExample, kinds: Sequence[AttentionKind]) -> str:
    drawing, width, y = _Drawing(), 320.0, 4.0
    for kind in kinds:
        layers = example.layers(kind)
        heads = max(map(len, layers))
        queries, keys = map(len, example.tokens[kind])
        height = _THUMBNAIL * queries / keys
        note = "rows: layers; columns: heads; below: mean entropy in nats"
        drawing.text(_TITLES[kind], _LEFT, y + 16, "title")
        drawing.text(note, _LEFT, y + 31, "small")
        y += 54
        lefts = [_LEFT + head * (_THUMBNAIL + _GAP) for head in range(heads)]
        for head, x in enumerate(lefts, 1):
            drawing.text(str(head), x + _THUMBNAIL / 2, y - 6, "small", "middle")
        for number, weights in enumerate(layers, 1):
            drawing.text(str(number), _LEFT - 8, y + height / 2 + 4, "small", "end")
            entropies = head_entropy(weights[None])[0]
            for x, matrix, entropy in zip(lefts, weights, entropies, strict=False):
                drawing.map(matrix, x, y, _THUMBNAIL, height)
                below = y + height + 12
                drawing.text(f"{entropy:.2f}", x + _THUMBNAIL / 2, below, "small", "middle")
            y += height + 20
        width = max(width, _LEFT + heads * (_THUMBNAIL + _GAP))
        y += 16
    return drawing.svg(width, y - 16)


def _one_head(
    matrix: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    title: str,
    special: Sequence[str],
) -> str:
    left, top = (max(map(_text_width, tokens)) + 14 for tokens in (queries, keys))
    top += 26
    width, height = _CELL * len(keys), _CELL * len(queries)
    drawing = _Drawing()
    drawing.text(title, 4, 16, "title")
    drawing.map(matrix, left, top, width, height)
    for row, token in enumerate(queries):
        style = "special" if token in special else "token"
        drawing.text(token, left - 8, top + _CELL * (row + 0.5) + 4.5, style, "end")
    for column, token in enumerate(keys):
        style = "special" if token in special else "token"
        drawing.text(token, left + _CELL * (column + 0.5) + 4.5, top - 8, style, "upwards")
    x, y = left + 4, top + height + 14
    drawing.map(np.linspace(0, 1, 64)[None], x, y, 120, 8)
    for value in (0, 0.5, 1):
        drawing.text(f"{value:g}", x + 120 * value, y + 21, "small", "middle")
    drawing.text("weight", x + 132, y + 8, "small")
    return drawing.svg(max(left + width + 4, left + 190, _text_width(title) + 8), y + 30)


def _text_width(text: str) -> float:
    """Estimates the width of a text: 13 for "▁" and wide characters, such as Hangul, else 7.4."""
    return sum(13 if x == "▁" or unicodedata.east_asian_width(x) in "WF" else 7.4 for x in text)


def _colours(matrix: np.ndarray) -> np.ndarray:
    """Returns the colours of weights `(T, S)`, uint8 `(T, S, 3)`."""
    stops = np.linspace(0, 1, len(_COLOURS))
    shown = np.rint(255 * matrix) / 255
    channels = [np.interp(shown, stops, _COLOURS[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype("uint8")
