#!/usr/bin/env python
"""Losses of the same training, step by step: the fast step drops nothing.

The model of the recipe multi30k_en_de, post-norm and without dropout, on the batches that the
recipe makes of Multi30k, but smaller ones. Weights begin the same in all ways and on all backends:

- `SlicedLogitsTrainer` as `keras-transformer train` makes it: slices of logits, TransformerAdam,
  the weights of tokens as the batch plan gives them;
- `Transformer` with all its logits, MaskedCrossentropy and Keras's own Adam;
- the same with the sentences of each batch in another order, which tells what rounding does;
- KerasHub's layers with a loss that is no part of this package, and Keras's Adam.

The table has the largest difference of each from the first up to a step, in nats per token. With
further `--dtypes` also the first in mixed precision, against itself in float32.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import Worker, limit_threads, panels_of, table, write_json
from tqdm import tqdm

BACKENDS = ("tensorflow", "jax", "torch")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
TRAINER = "SlicedLogitsTrainer"
PEERS = ("Transformer, full logits", "Transformer, rows reversed", "KerasHub's layers")
MARKS = (1, 10, 50, 100, 200)
EXAMPLES = """examples:
  scripts/bench/loss_curves.py --data-dir multi30k --json losses.json --plot losses.png
  scripts/bench/loss_curves.py --data-dir multi30k --backends jax --dtypes float32 mixed_bfloat16
"""


class Curve(NamedTuple):
    """A way to train."""

    way: str
    backend: str
    dtype: str = "float32"


def curves(backends: Sequence[str], dtypes: Sequence[str]) -> list[Curve]:
    """All that are drawn; the trainer's in float32 comes first on each backend."""
    return [
        curve
        for backend in backends
        for curve in (
            Curve(TRAINER, backend),
            *(Curve(peer, backend) for peer in PEERS),
            *(Curve(TRAINER, backend, dtype) for dtype in dtypes if dtype != "float32"),
        )
    ]


def measure(arguments: argparse.Namespace) -> dict[Curve, list[float]]:
    """Losses in nats per real target token, by curve; those of a backend at the same time."""
    found = {}
    program = Path(__file__).with_name("_loss_engines.py")
    with tempfile.TemporaryDirectory() as folder:
        prepare(arguments.data_dir, arguments.tokens, Path(folder))
        progress = tqdm(total=len(curves(arguments.backends, arguments.dtypes)), unit="curve")
        for backend in arguments.backends:
            with ExitStack() as stack:
                workers = {}
                for curve in curves([backend], arguments.dtypes):
                    words = (curve.way, folder, curve.dtype)
                    # PyTorch's threads would spin while those of other processes want the core.
                    environment = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
                    worker = stack.enter_context(Worker(program, *words, **environment))
                    worker.send("losses", arguments.steps)
                    workers[curve] = worker
                for curve, worker in workers.items():
                    progress.set_postfix_str(", ".join(curve))
                    found[curve] = worker.receive()
                    progress.update()
        progress.close()
    return found


def prepare(data_dir: Path, tokens: int, folder: Path) -> None:
    """Makes a run with tokenizer and encoded text."""
    from keras_transformer.data import Tokenizer, TokenStore
    from keras_transformer.recipe.files import load_recipe
    from keras_transformer.runs.run import Run

    settings = {
        "data.directory": data_dir,
        "model.norm_first": "false",
        "model.dropout_rate": 0,
        "training.tokens_per_batch": tokens,
        "training.warmup_steps": 100,
        "training.peak_learning_rate": 0.001,
    }
    recipe = load_recipe("multi30k_en_de", [f"{key}={value}" for key, value in settings.items()])
    run = Run.create(folder, recipe)
    pairs = run.text.pairs("train")
    own = recipe.tokenizer
    tokenizer = Tokenizer.train(pairs, own.vocabulary_size, normalization=own.normalization)
    tokenizer.save(run.tokenizer_dir)
    TokenStore.build(run.store_dir / "train", pairs, tokenizer, recipe.data.max_length)


def row(curve: Curve, losses: Sequence[float], expected: Sequence[float]) -> dict[str, Any]:
    """Largest differences up to the steps of `MARKS`, and the last loss."""
    differences = np.abs(np.subtract(losses, expected))
    marks = [mark for mark in MARKS if mark <= len(losses)]
    return {
        **curve._asdict(),
        **{f"step_{mark}": float(differences[:mark].max()) for mark in marks},
        "last_loss": losses[-1],
    }


def report(found: dict[Curve, list[float]]) -> list[dict[str, Any]]:
    return [
        row(curve, losses, found[Curve(TRAINER, curve.backend)]) for curve, losses in found.items()
    ]


def plot(found: dict[Curve, list[float]], path: Path) -> None:
    """Above the losses, below what they differ by from the trainer's in float32."""
    backends = list(dict.fromkeys(curve.backend for curve in found))
    figure, panels = panels_of(backends, rows=2, height=6.5, sharex=True)
    for column, backend in zip(panels.T, backends, strict=True):
        expected = np.array(found[Curve(TRAINER, backend)])
        for curve, losses in found.items():
            if curve.backend == backend:
                label = curve.way + ("" if curve.dtype == "float32" else f", {curve.dtype}")
                column[0].plot(range(1, 1 + len(losses)), losses, lw=1, label=label)
                differences = np.abs(losses - expected)
                column[1].plot(range(1, 1 + len(losses)), differences, lw=1, label=label)
        column[0].set(title=backend)
        column[1].set(xlabel="optimizer step", yscale="log")
        column[0].legend(fontsize="x-small")
    panels[0][0].set_ylabel("loss, nats per token")
    panels[1][0].set_ylabel(f"difference from {TRAINER}, float32")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of Multi30k's files")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--steps", type=int, default=200, help="default: 200")
    parser.add_argument("--tokens", type=int, default=1_024, help="of a batch; default: 1024")
    parser.add_argument("--json", type=Path, help="file for the table's rows, with all losses")
    parser.add_argument("--plot", type=Path, help="PNG file; needs matplotlib")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1. Received: --steps {arguments.steps}")
    limit_threads()
    found = measure(arguments)
    rows = report(found)
    formats = {key: ".1e" if key.startswith("step") else ".4f" for key in rows[0]}
    print(f"\n{table(rows, {key: formats[key] for key in list(rows[0])[len(Curve._fields) :]})}")
    if arguments.json:
        losses = [{"losses": losses} for losses in found.values()]
        write_json(arguments.json, [a | b for a, b in zip(rows, losses, strict=True)])
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
