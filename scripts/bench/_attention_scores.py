"""What the scale of the scores is for: their variance, and how saturated the softmax is."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _common import Worker

QUERIES, KEYS = 512, 64


def work() -> dict[str, Callable[..., Any]]:
    """What the worker can be asked for."""
    from keras import ops

    from keras_transformer import scaled_dot_product_attention

    def scores(d_k: int, use_scale: bool) -> dict[str, float]:
        generator = np.random.default_rng(d_k)
        shapes = [(QUERIES, d_k), (KEYS, d_k)]
        query, key = (generator.normal(size=shape).astype("float32") for shape in shapes)
        _, weights = scaled_dot_product_attention(query, key, key, use_scale=use_scale)
        return statistics(query @ key.T / (d_k**0.5 if use_scale else 1.0), to_numpy(weights))

    to_numpy = ops.convert_to_numpy
    return {"scores": scores}


def statistics(scores: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Variance of scores; of the softmax largest weight, entropy, and size of its derivative.

    The derivative of the weights by their own scores, w (1 - w) summed over the keys, is 1 - 1 / S
    for equal weights and goes to 0 as one of them takes all.
    """
    entropy = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1)
    return {
        "variance": round(float(scores.var()), 3),
        "largest_weight": round(float(weights.max(-1).mean()), 4),
        "entropy": round(float(entropy.mean()), 4),
        "derivative": round(float((weights * (1 - weights)).sum(-1).mean()), 4),
    }


def measure_scores(worker: Worker, widths: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each d_k, with and without the scale."""
    return [
        {"d_k": d_k, "scaled": str(scaled), **worker.ask("scores", d_k, scaled)}
        for scaled in (False, True)
        for d_k in widths
    ]
