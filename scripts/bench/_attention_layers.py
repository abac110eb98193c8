"""Table 1 of the paper, measured: what a layer costs against the length, and how far it sees."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from _attention_memory import exponent
from _common import Worker

D_MODEL, NUM_HEADS, WINDOW, KERNEL = 128, 4, 64, 5
# Layers that read a sequence one position after the other.
RECURRENT = ("recurrent (LSTM)",)


def layers() -> dict[str, Any]:
    """The rows of the table; a layer of attention has its four projections."""
    import keras

    from keras_transformer import MultiHeadAttention
    from keras_transformer.layers import LocalAttention

    local = LocalAttention(WINDOW)
    return {
        "self-attention": MultiHeadAttention(D_MODEL, NUM_HEADS),
        f"self-attention, r = {WINDOW}": MultiHeadAttention(
            D_MODEL, NUM_HEADS, attention_pattern=local
        ),
        "recurrent (LSTM)": keras.layers.LSTM(D_MODEL, return_sequences=True),
        f"convolutional, k = {KERNEL}": keras.layers.Conv1D(D_MODEL, KERNEL, padding="same"),
    }


def work() -> dict[str, Callable[..., Any]]:
    """What the worker can be asked for."""
    import keras
    from keras import ops

    calls = {}
    for name, layer in layers().items():
        inputs = keras.Input((None, D_MODEL))
        calls[name] = keras.Model(inputs, layer(inputs))

    def sequences(length: int) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(1, length, D_MODEL)).astype("float32")

    def seconds(name: str, length: int, repeats: int) -> list[float]:
        x = ops.convert_to_tensor(sequences(length))
        calls[name].predict_on_batch(x)
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            calls[name].predict_on_batch(x)
            took.append(time.perf_counter() - start)
        return took

    def reach(name: str, length: int) -> int:
        """The farthest position that sees a change in the middle of the sequence."""
        x = sequences(length)
        changed = x.copy()
        changed[:, length // 2] += 10
        differs = calls[name].predict_on_batch(x) != calls[name].predict_on_batch(changed)
        where = np.flatnonzero(differs.any(axis=(0, 2)))
        return int(np.abs(where - length // 2).max())

    return {"seconds": seconds, "reach": reach, "names": lambda: list(calls)}


def measure_layers(
    worker: Worker, lengths: Sequence[int], repeats: int, progress: Callable[[str], Any]
) -> list[dict[str, Any]]:
    """A row for each layer: milliseconds by length, their exponent, and the paper's columns."""
    rows = []
    for name in worker.ask("names"):
        seconds = {}
        for length in lengths:
            progress(f"{name}, {length} tokens")
            seconds[length] = median(worker.ask("seconds", name, length, repeats))
        longest = lengths[-1]
        rows.append(row(name, seconds, worker.ask("reach", name, longest)))
    return rows


def row(name: str, seconds: Mapping[int, float], reach: int) -> dict[str, Any]:
    longest = max(seconds)
    return {
        "layer": name,
        **{f"ms_{length}": round(1000 * took, 3) for length, took in seconds.items()},
        "exponent": exponent(list(seconds), list(seconds.values())),
        "sequential": longest if name in RECURRENT else 1,
        "path": path_length(name, longest, reach),
    }


def path_length(name: str, length: int, reach: int) -> int:
    """Steps or layers from one end of a sequence to the other.

    A recurrent layer takes a step for each position. The others are stacked until the last
    position sees the first, and a layer reaches as far as a change in its middle was seen; one
    that was seen everywhere needs no other layer.
    """
    if name in RECURRENT:
        return length
    return 1 if reach >= length // 2 else math.ceil((length - 1) / reach)
