"""Memory and time of one training step of an attention layer, against the length."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import ENVIRONMENT
from _peak_memory import in_new_process, measure_step
from tqdm import tqdm

D_MODEL, NUM_HEADS, WINDOW = 256, 4, 128
MODULES = ("dense", "full", "local", "strided", "fixed", "keras", "torch.nn")
HOLD_ALL_SCORES = ("dense", "keras", "torch.nn")


class Module(NamedTuple):
    """`MultiHeadAttention` of this package by its pattern, or one of a peer."""

    name: str
    backend: str


def modules(backends: Sequence[str], names: Sequence[str] = MODULES) -> list[Module]:
    pairs = [Module(name, backend) for backend in backends for name in names]
    return [module for module in pairs if module.name != "torch.nn" or module.backend == "torch"]


def measure_memory(
    modules: Sequence[Module], lengths: Sequence[int], longest_dense: int, is_causal: bool
) -> list[dict[str, Any]]:
    """A row for each module: MB and seconds at each length, and the exponents fitted."""
    points = [(m, n) for m in modules for n in lengths]
    points = [(m, n) for m, n in points if n <= longest_dense or m.name not in HOLD_ALL_SCORES]
    found: dict[Module, dict[int, dict[str, float]]] = {module: {} for module, _ in points}
    with tqdm(points, desc="memory", unit="process") as progress:
        for module, length in progress:
            progress.set_postfix_str(f"{module.name} {module.backend} {length}")
            found[module][length] = in_new_process(
                Path(__file__),
                module.name,
                str(length),
                *["causal"] * is_causal,
                backend=module.backend,
            )
    return [row(module, lengths, own) for module, own in found.items()]


def row(
    module: Module, lengths: Sequence[int], found: dict[int, dict[str, float]]
) -> dict[str, Any]:
    """Figures by length, None where none was taken, and their exponents."""
    figures = {}
    for name in ("mb", "seconds"):
        figures |= {f"{name}_{n}": found[n][name] if n in found else None for n in lengths}
        figures[f"{name}_exponent"] = exponent(list(found), [x[name] for x in found.values()])
    return {"module": module.name, "backend": module.backend, **figures}


def exponent(lengths: Sequence[int], figures: Sequence[float]) -> float | None:
    """The power of the length that figures grow with, by the longer half of the lengths."""
    if len(lengths) < 2:
        return None
    start = max(0, min(len(lengths) // 2, len(lengths) - 3))
    logarithms = np.log(lengths[start:]), np.log(figures[start:])
    return round(float(np.polyfit(*logarithms, 1)[0]), 2)


# --- In the process of a point -------------------------------------------------------------------


def step_of(module: str, length: int, is_causal: bool) -> Callable[[], Any]:
    """A training step of one layer on one sequence: forward, backward, and new weights."""
    x = np.random.default_rng(0).normal(size=(1, length, D_MODEL)).astype("float32")
    if module == "torch.nn":
        return _torch_step(x, is_causal)
    import keras

    from keras_transformer import MultiHeadAttention
    from keras_transformer.layers import (
        FixedAttention,
        FullAttention,
        LocalAttention,
        StridedAttention,
    )

    inputs = keras.Input((length, D_MODEL))
    if module == "keras":
        layer = keras.layers.MultiHeadAttention(NUM_HEADS, D_MODEL // NUM_HEADS)
        outputs = layer(inputs, inputs, use_causal_mask=is_causal)
    else:
        pattern = {
            "dense": None,
            "full": FullAttention(),
            "local": LocalAttention(WINDOW),
            "strided": StridedAttention(WINDOW),
            "fixed": FixedAttention(WINDOW),
        }[module]
        layer = MultiHeadAttention(D_MODEL, NUM_HEADS, attention_pattern=pattern)
        outputs = layer(inputs, use_causal_mask=is_causal)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=keras.backend.backend() == "jax")
    return lambda: model.train_on_batch(x, x)


def _torch_step(x: np.ndarray, is_causal: bool) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    layer = torch.nn.MultiheadAttention(D_MODEL, NUM_HEADS, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    tensor = torch.tensor(x)
    mask = torch.ones(2 * x.shape[1:2], dtype=bool).triu(1) if is_causal else None

    def step() -> None:
        optimizer.zero_grad()
        output, _ = layer(
            tensor, tensor, tensor, need_weights=False, attn_mask=mask, is_causal=is_causal
        )
        torch.nn.functional.mse_loss(output, tensor).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    print(json.dumps(measure_step(step_of(sys.argv[1], int(sys.argv[2]), "causal" in sys.argv))))
