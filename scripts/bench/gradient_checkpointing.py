#!/usr/bin/env python
"""Memory and time of one training step of `base`, with and without gradient checkpointing.

Every figure comes from a process of its own, on 2 CPU threads: the MB that a step adds at its peak
to what is there before it (weights, and the two moments of Adam), and its seconds.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import Parser, limit_threads, show
from _peak_memory import in_new_process, measure_step
from tqdm import tqdm

VOCABULARY_SIZE = 37_000
EXAMPLES = """examples:
  scripts/bench/gradient_checkpointing.py
  scripts/bench/gradient_checkpointing.py --backends jax --preset big --batch-size 8 --length 128
"""


def step_of(
    preset: str, gradient_checkpointing: bool, batch_size: int, length: int
) -> Callable[[], Any]:
    """A training step on random ids."""
    from keras_transformer import SlicedLogitsTrainer, Transformer, TransformerAdam

    model = Transformer.of_size(preset, VOCABULARY_SIZE)
    trainer = SlicedLogitsTrainer(model, gradient_checkpointing=gradient_checkpointing)
    trainer.compile(TransformerAdam(0.001))
    ids = np.random.default_rng(0).integers(4, VOCABULARY_SIZE, (batch_size, length), "int32")
    return lambda: trainer.train_on_batch({"source_ids": ids, "target_ids": ids}, ids)


def main() -> None:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_backends()
    parser.add_argument("--preset", choices=("tiny", "base", "big"), default="base")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences; default: 32")
    parser.add_argument("--length", type=int, default=64, help="tokens of each; default: 64")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse()
    if arguments.step:
        print(json.dumps(measure_step(step_of(*json.loads(arguments.step)))))
        return

    limit_threads()
    cases = [(backend, on) for backend in arguments.backends for on in (False, True)]
    rows = []
    for backend, on in tqdm(cases, unit="process"):
        step = json.dumps([arguments.preset, on, arguments.batch_size, arguments.length])
        figures = in_new_process(Path(__file__), "--step", step, backend=backend)
        rows.append({"backend": backend, "gradient_checkpointing": "yes" if on else "no"} | figures)
    show(rows, {"mb": ",.0f", "seconds": ".2f"}, arguments.json)


if __name__ == "__main__":
    main()
