"""A page that shows the attention of one example: one HTML file that needs no other file."""

import json
import zlib
from collections.abc import Sequence

import numpy as np

from keras_transformer.visualization.attention_example import AttentionExample
from keras_transformer.visualization.attention_weights import AttentionMap
from keras_transformer.visualization.pages import render

# Weights are stored as integers of 19 bits, so the rounding error is less than 1e-6.
WEIGHT_STEPS = 2**19 - 1


def attention_page(example: AttentionExample) -> str:
    """Returns an HTML page that shows the attention of all layers and heads.

    The page opens from a file and loads nothing else. It contains the weights, rounded by less than
    1e-6, and can save them as JSON. It can save what it shows as SVG or PNG.

    Args:
        example: The attention maps and their tokens.
    """
    page = {
        "texts": list(example.texts),
        "special": list(example.special_tokens),
        "alignment": " ".join(f"{source}-{target}" for source, target in example.alignment),
        "tokens": {kind: list(map(list, example.tokens[kind])) for kind in example.kinds},
        "maps": [
            {"name": each.name, "kind": each.kind, "heads": each.weights.shape[1]}
            for each in example.maps
        ],
        "weightSteps": WEIGHT_STEPS,
    }
    return render(
        "attention.html",
        title=f"Attention: {example.texts[0]}" if example.texts else "Attention",
        weights=_text_from_bytes(_packed_weights(example.maps)),
        # "<" could begin a tag, such as "</script>".
        data=json.dumps(page, ensure_ascii=False).replace("<", r"\u003c"),
    )


def _packed_weights(maps: Sequence[AttentionMap]) -> bytes:
    """Compresses the weights of all maps, without the later positions of causal attention.

    The lowest bytes of all weights come first, then the middle bytes, then the highest bytes. Equal
    bytes are then neighbours, and the result is smaller.
    """
    weights = np.concatenate([_not_hidden(each) for each in maps]).astype("float64")
    integers = np.rint(weights * WEIGHT_STEPS).astype("<u4")
    planes = integers.view("uint8").reshape(-1, 4)[:, :3].T
    return zlib.compress(planes.tobytes(), 9)


def _not_hidden(each: AttentionMap) -> np.ndarray:
    rows, columns = each.weights.shape[2:]
    seen = np.tri(rows, columns) if each.kind == "decoder" else np.ones((rows, columns))
    return each.weights[..., seen > 0].ravel()


def _text_from_bytes(data: bytes) -> str:
    """Writes 7 bits as one character, because base64 would need 17 % more space.

    256 is added to the characters that an HTML parser would change: NUL, carriage return and "<".
    """
    bits = np.unpackbits(np.frombuffer(data, "uint8"))
    groups = np.pad(bits, (0, -len(bits) % 7)).reshape(-1, 7)
    codes = np.packbits(groups, axis=1) >> 1
    return codes.tobytes().decode("ascii").translate({code: code + 256 for code in b"\0\r<"})
