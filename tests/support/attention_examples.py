"""Attention of a made-up model, for tests of pages and pictures."""

import numpy as np

from keras_transformer.visualization import AttentionExample, AttentionMap
from support.reference import softmax

SOURCE = ["▁나는", "▁<script>", "alert(1)", "</script>", "▁&amp;", "</s>"]
TARGET = ["▁ذهبت", "▁إلى", "مدرسة", "</s>"]


def attention_example(source=SOURCE, target=TARGET, layers=2, heads=3, sharpness=2.0):
    """An example of a Transformer, with random weights."""
    generator = np.random.default_rng(0)
    axes = {
        "encoder": (source, source),
        "decoder": (["<s>", *target[:-1]], ["<s>", *target[:-1]]),
        "cross": (target, source),
    }

    def attention_map(kind, number):
        rows, columns = map(len, axes[kind])
        scores = sharpness * generator.normal(size=(1, heads, rows, columns))
        if kind == "decoder":
            scores = np.where(np.tri(rows, dtype=bool), scores, -1e9)
        return AttentionMap(f"layer_{number}/{kind}", kind, softmax(scores).astype("float32"))

    maps = [attention_map("encoder", number) for number in range(layers)]
    for number in range(layers):
        maps += [attention_map(kind, number) for kind in ("decoder", "cross")]
    texts = ["나는 <script>alert(1)</script> &amp; 갔습니다", "ذهبت إلى المدرسة"]
    return AttentionExample(maps, axes, texts, ("<s>", "</s>"), ((0, 1), (2, 0)), (-0.1, -2.3, 0.0))
