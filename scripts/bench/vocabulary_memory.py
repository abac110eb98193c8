#!/usr/bin/env python
"""Memory of a training step against the size of the vocabulary, beside peers.

One model (2 + 2 layers, d_model 128, one matrix for all embeddings) and one batch of 4,096 target
tokens, on 2 CPU threads, compiled by XLA on JAX alone; a fresh process for each figure. What is
measured is what the second step adds at its peak to the weights and moments of Adam that are there
before it: activations, logits, and gradients. A line through the figures of an engine tells what
grows with the vocabulary from the rest; `logits` is its slope in float32 tensors `(4096, V)`, of
which the gradient of the embeddings takes 0.03.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import Parser, limit_threads, panels_of, show
from _peak_memory import in_new_process
from _vocabulary_engines import ENGINES, TARGET_TOKENS, TORCH
from tqdm import tqdm

FLOAT32_BYTES = 4
EXAMPLES = """examples:
  scripts/bench/vocabulary_memory.py --json vocabulary.json --plot vocabulary.png
  scripts/bench/vocabulary_memory.py --backends jax --sizes 8000 64000
"""


class Curve(NamedTuple):
    """An engine on a backend."""

    engine: str
    backend: str


def curves(backends: Sequence[str]) -> list[Curve]:
    every = [Curve(engine, backend) for backend in backends for engine in ENGINES]
    return [curve for curve in every if curve.engine != TORCH or curve.backend == "torch"]


def measure(backends: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each curve."""
    program = Path(__file__).with_name("_vocabulary_engines.py")
    found: dict[Curve, list[float]] = {curve: [] for curve in curves(backends)}
    with tqdm(total=len(found) * len(sizes), unit="process") as progress:
        for curve, figures in found.items():
            for size in sizes:
                progress.set_postfix_str(f"{curve.engine} {curve.backend} {size}")
                point = (curve.engine, curve.backend, str(size))
                figures.append(in_new_process(program, *point, backend=curve.backend)["mb"])
                progress.update()
    return [row(curve, sizes, figures) for curve, figures in found.items()]


def row(curve: Curve, sizes: Sequence[int], megabytes: Sequence[float]) -> dict[str, Any]:
    """Figures by size, and the line through them.

    `mb_fixed` is where the line meets a vocabulary of nothing; `logits` is its slope.
    """
    slope, fixed = np.polyfit(sizes, megabytes, 1)
    return {
        **curve._asdict(),
        **{f"mb_{size}": mb for size, mb in zip(sizes, megabytes, strict=True)},
        "mb_fixed": round(float(fixed)),
        "logits": round(float(slope) * 1e6 / (TARGET_TOKENS * FLOAT32_BYTES), 2),
    }


def plot(rows: Sequence[dict[str, Any]], sizes: Sequence[int], path: Path) -> None:
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    figure, panels = panels_of(backends, rows=1, height=4, sharey=True)
    for backend, panel in zip(backends, panels[0], strict=True):
        for own in (row for row in rows if row["backend"] == backend):
            megabytes = [own[f"mb_{size}"] for size in sizes]
            label = f"{own['engine']}: {own['logits']} logits"
            panel.plot(sizes, megabytes, marker="o", ms=3, label=label)
        panel.set(title=backend, xlabel="vocabulary size", ylim=(0, None))
        panel.legend(fontsize="x-small")
    panels[0][0].set_ylabel("MB that a training step adds at its peak")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_backends()
    parser.add_argument("--sizes", nargs="+", type=int, default=[8_000, 16_000, 32_000, 64_000])
    parser.add_argument("--plot", type=Path, help="PNG file; needs matplotlib")
    arguments = parser.parse()
    if len(set(arguments.sizes)) < 2:
        parser.error(f"--sizes must be two or more. Received: --sizes {arguments.sizes}")
    limit_threads()
    rows = measure(arguments.backends, arguments.sizes)
    show(rows, {key: "," for key in rows[0] if key not in Curve._fields}, arguments.json)
    if arguments.plot:
        plot(rows, arguments.sizes, arguments.plot)


if __name__ == "__main__":
    main()
