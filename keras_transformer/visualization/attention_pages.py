"""The attention of one example, which is drawn as an HTML page, or as SVG and PNG pictures."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_transformer._files import png
from keras_transformer._pages import Page, render, text_width
from keras_transformer.errors import UserError, imported
from keras_transformer.layers.attention.scaled_dot_product_attention import AttentionKind

_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
_NOT_IN_XML = re.compile("[\0-\x1f\ufffe\uffff]")
# White to dark blue, at the weights 0, 1/3, 2/3 and 1.
_COLOURS = np.array([[255, 255, 255], [158, 202, 225], [49, 130, 189], [8, 48, 107]])
_SQUARE = 8  # pixels


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of all heads of one layer.

    Attributes:
        name: Path of the layer in the model, such as `"encoder_layer_1/self_attention"`.
        kind: `"encoder"` (self-attention to all positions), `"decoder"` (causal self-attention) or
            `"cross"` (attention to another sequence).
        weights: float32 array `(B, H, T, S)`. Row t, column s is the weight of key s for query t.
            A layer without heads has H = 1.
    """

    name: str
    kind: AttentionKind
    weights: np.ndarray


def head_entropy(weights: np.ndarray, query_mask: np.ndarray | None = None) -> np.ndarray:
    """Returns the mean entropy of the rows of each head, in nats.

    The entropy is 0 if each query attends to one key, and ln(S) if all weights are equal.

    Args:
        weights: float array `(B, H, T, S)`, such as `AttentionMap.weights`.
        query_mask: bool array `(B, T)`, True where a query is a real token. At least one query of
            each example must be real. Defaults to None, which means that all queries are real.

    Returns:
        float64 array `(B, H)`.
    """
    weights = np.asarray(weights, "float64")
    entropies = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)
    is_query = np.ones_like(entropies) if query_mask is None else np.asarray(query_mask)[:, None]
    counted = np.broadcast_to(is_query, entropies.shape)
    return np.average(entropies, axis=-1, weights=counted)


@dataclass(frozen=True)
class AttentionExample:
    """Attention maps of one example, and the tokens of their rows and columns.

    Example:

    >>> tokens = ["<s>", "▁to", "▁be"]
    >>> maps = attention_maps(language_model, token_ids)                # token_ids: int (1, 3)
    >>> page = attention_page(AttentionExample(maps, {"decoder": (tokens, tokens)}))

    Args:
        maps: The result of `attention_maps` for a batch of one example.
        tokens: For each kind in `maps`, the tokens of the queries (rows) and of the keys (columns).
        texts: Titles of the page, such as the sentence and its translation. Defaults to none.
        special_tokens: Tokens that are not part of the text. They are marked. Defaults to none.
        alignment: Pairs of word indices (source, target). Defaults to none.
        word_scores: Mean log-probability (nats) of each word of the last text. Defaults to none.

    Raises:
        ValueError: If `maps` has a batch of several examples, or if the numbers of tokens are not
            the numbers of rows and columns.
    """

    maps: Sequence[AttentionMap] = field(repr=False)
    tokens: Mapping[AttentionKind, tuple[Sequence[str], Sequence[str]]]
    texts: Sequence[str] = ()
    special_tokens: Sequence[str] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    word_scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for each in self.maps:
            queries, keys = map(len, self.tokens[each.kind])
            shape = each.weights.shape
            if (shape[0], *shape[2:]) != (1, queries, keys):
                raise ValueError(
                    "`weights` of each map must have the shape (1, H, T, S), with T tokens of "
                    f"queries and S tokens of keys. Received: weights of shape {shape}, {queries} "
                    f"and {keys} tokens of kind {each.kind!r}"
                )

    @property
    def kinds(self) -> list[AttentionKind]:
        """The kinds of the maps, in their order."""
        return list(dict.fromkeys(each.kind for each in self.maps))

    def layers(self, kind: AttentionKind) -> list[np.ndarray]:
        """Returns the weights `(H, T, S)` of each layer of a kind."""
        return [each.weights[0] for each in self.maps if each.kind == kind]

    def entropies(self, kind: AttentionKind) -> list[list[float]]:
        """Returns `head_entropy` of each layer of a kind."""
        return [head_entropy(each.weights)[0].tolist() for each in self.maps if each.kind == kind]

    def _repr_html_(self) -> str:
        """Shows the attention in a notebook."""
        return attention_page(self)._repr_html_()


def attention_page(example: AttentionExample) -> Page:
    """Returns an HTML page that shows the attention of all layers and heads.

    The page opens from a file and loads nothing else. It contains the weights, rounded by less than
    1e-5, and can save them as JSON. It can save what it shows as SVG or PNG. A notebook shows it.
    """
    page = {
        "texts": list(example.texts),
        "special": list(example.special_tokens),
        "alignment": " ".join(f"{source}-{target}" for source, target in example.alignment),
        "wordScores": list(example.word_scores),
        "tokens": {kind: list(map(list, example.tokens[kind])) for kind in example.kinds},
        "maps": [
            {"name": each.name, "kind": each.kind, "heads": each.weights.shape[1]}
            for each in example.maps
        ],
    }
    weights = np.concatenate([each.weights.ravel() for each in example.maps])
    integers = np.rint(weights.astype("float64") * 65535).astype("<u2")
    return render(
        "attention.html",
        title=f"Attention: {example.texts[0]}" if example.texts else "Attention",
        weights=base64.b64encode(zlib.compress(integers.tobytes(), 9)).decode(),
        # "<" could begin a tag, such as "</script>".
        data=json.dumps(page, ensure_ascii=False).replace("<", r"\u003c"),
    )


def attention_svg(
    example: AttentionExample,
    kind: AttentionKind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Page:
    """Draws heat maps with their tokens, or small heat maps of all layers and heads, as SVG.

    Args:
        example: The attention maps and their tokens.
        kind: `"encoder"`, `"decoder"` or `"cross"`. Defaults to None, which means all kinds for
            small heat maps and the last kind of the example for a single layer.
        layer: Number of the layer among those of its kind, from 1. Defaults to None, which means
            small heat maps of all layers.
        head: Number of the head, from 1. Defaults to None, which means all heads of the layer.

    Returns:
        The text of an SVG file.

    Raises:
        UserError: If there is no such kind, layer or head, or if `head` is given without `layer`.
    """
    if kind is not None and kind not in example.kinds:
        raise UserError(f"kind must be one of {example.kinds}. Received: kind={kind}")
    kinds = example.kinds if kind is None else [kind]
    if layer is None and head is None:
        blocks = [
            (_TITLES[x], example.layers(x), example.entropies(x), *map(len, example.tokens[x]))
            for x in kinds
        ]
        return render("attention.svg", blocks=blocks, width=320, image=_image)
    layers = example.layers(kinds[-1])
    if not 1 <= (layer or 0) <= len(layers) or not 1 <= (head or 1) <= len(layers[0]):
        raise UserError(
            f"layer must be 1 to {len(layers)} and head 1 to {len(layers[0])} for the kind "
            f"{kinds[-1]}. Received: layer={layer}, head={head}"
        )
    shown = list(enumerate(layers[(layer or 0) - 1], 1))
    title = f"{_TITLES[kinds[-1]]}, layer {layer}" + (f", head {head}" if head else "")
    queries, keys = ([_NOT_IN_XML.sub("\ufffd", x) for x in y] for y in example.tokens[kinds[-1]])
    return render(
        "attention.svg",
        blocks=(),
        title=title,
        queries=queries,
        keys=keys,
        special=example.special_tokens,
        left=max(map(text_width, queries)) + 14,
        top=max(map(text_width, keys)) + 24,
        width=text_width(title) + 8,
        panels=[("", x) if head else (f"head {i}", x) for i, x in shown if head in (None, i)],
        scale=np.linspace(0, 1, 64)[None],
        image=_image,
    )


def attention_image(example: AttentionExample, kind: AttentionKind) -> np.ndarray:
    """Draws small heat maps of all heads of one kind, without text: a layer a row, a head a column.

    Each weight is a square of 8 pixels. Returns a uint8 array `(height, width, 3)`.
    """
    squares = _colours(np.stack(example.layers(kind))).repeat(_SQUARE, 2).repeat(_SQUARE, 3)
    frame = ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0))  # The frames between the heat maps are grey.
    maps = np.pad(squares, frame, constant_values=187)
    layers, heads, height, width, _ = maps.shape
    return maps.swapaxes(1, 2).reshape(layers * height, heads * width, 3)


def png_from_svg(svg: str) -> bytes:
    """Converts a picture to PNG, at 3 pixels per SVG unit.

    Raises:
        UserError: If the package resvg_py is not installed.
    """
    return bytes(resvg().svg_to_bytes(svg_string=svg, zoom=3))


def resvg() -> Any:
    """Returns the package resvg_py. Raises `UserError` if it is not installed."""
    return imported("resvg_py", "visualization", "PNG files (unlike SVG files) need")


def _image(matrix: np.ndarray) -> str:
    return base64.b64encode(png(_colours(matrix))).decode()


def _colours(matrix: np.ndarray) -> np.ndarray:
    """Returns the colours of weights `(..., T, S)`, uint8 `(..., T, S, 3)`."""
    stops = np.linspace(0, 1, len(_COLOURS))
    shown = np.rint(255 * matrix) / 255
    channels = [np.interp(shown, stops, _COLOURS[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype("uint8")
