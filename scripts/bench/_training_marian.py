"""Marian trains on one batch. As a program: a worker that does so.

Marian's trainer (of `pymarian`) makes no single steps. So each turn is a process that trains for a
few steps, and the seconds of a step are those of Marian's log.
"""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _training_engines import ADAM, DROPOUT_RATE, LABEL_SMOOTHING, Case

WARM_UP_STEPS = 2
FIRST_ID = 2  # after </s> and <unk>
TRAIN = "import sys, _pymarian; _pymarian.Trainer(sys.argv[1]).train()"
STEP = re.compile(r"Up\. \d+ .* Cost ([\d.]+) .* Time ([\d.]+)s")


@contextlib.contextmanager
def marian_worker(case: Case) -> Iterator[_common.Worker]:
    """Start a worker with the actions of `_training_engines.start_worker`."""
    with tempfile.TemporaryDirectory() as folder:
        specification = json.dumps(dataclasses.asdict(case))
        with _common.Worker(Path(__file__), specification, folder) as worker:
            yield worker


def write_batch(case: Case, folder: Path) -> None:
    """Write as many random sentences as a batch has, and a vocabulary; a sentence ends with eos."""
    words = ["</s>", "<unk>", *(f"w{id}" for id in range(FIRST_ID, case.vocabulary_size))]
    (folder / "vocabulary.yml").write_text("".join(f"{w}: {i}\n" for i, w in enumerate(words)))
    generator = np.random.default_rng(0)
    for name, length in (("source", case.source_length), ("target", case.target_length)):
        ids = generator.integers(FIRST_ID, case.vocabulary_size, (case.batch_size, length - 1))
        (folder / name).write_text("".join(" ".join(f"w{id}" for id in row) + "\n" for row in ids))


def arguments_of(case: Case, folder: Path, steps: int) -> str:
    """Marian's options for the model, loss and optimizer of the other engines."""
    vocabulary = folder / "vocabulary.yml"
    options = {
        "type": "transformer",
        "model": folder / "model.npz",
        "train-sets": f"{folder / 'source'} {folder / 'target'}",
        "vocabs": f"{vocabulary} {vocabulary}",
        "dim-emb": case.d_model,
        "enc-depth": case.num_layers,
        "dec-depth": case.num_layers,
        "transformer-heads": case.num_heads,
        "transformer-dim-ffn": case.d_ff,
        "transformer-dropout": DROPOUT_RATE,
        "transformer-ffn-activation": "relu",
        "label-smoothing": LABEL_SMOOTHING,
        "learn-rate": ADAM["learning_rate"],
        "optimizer": "adam",
        "optimizer-params": f"{ADAM['beta_1']} {ADAM['beta_2']} {ADAM['epsilon']}",
        "mini-batch": case.batch_size,
        "max-length": 1 + max(case.source_length, case.target_length),
        "cpu-threads": _common.THREADS,
        "after": f"{steps}u",
        "disp-freq": "1u",
        "workspace": 4096,
        "seed": 1,
    }
    flags = "--tied-embeddings-all --sync-sgd --no-shuffle --no-reload --overwrite"
    return " ".join([*(f"--{name} {value}" for name, value in options.items()), flags])


def steps_of(log: str) -> list[tuple[float, float]]:
    """Returns the cost in nats per token and the seconds of each step in Marian's log."""
    return [(float(cost), float(seconds)) for cost, seconds in STEP.findall(log)]


def _actions(case: Case, folder: Path) -> dict[str, Callable[..., Any]]:
    write_batch(case, folder)

    def train(steps: int) -> list[tuple[float, float]]:
        command = [sys.executable, "-c", TRAIN, arguments_of(case, folder, steps)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = steps_of(done.stderr)
        if done.returncode or len(found) != steps:
            raise RuntimeError(f"Marian made {len(found)} steps:\n{done.stderr[-2000:]}")
        return found

    def first_step() -> dict[str, float]:
        ((loss, _),) = train(1)
        with np.load(folder / "model.npz") as weights:
            sizes = [weights[name].size for name in weights if not name.startswith("special")]
        return {"loss": loss, "num_parameters": sum(sizes)}

    def seconds_per_step(steps: int) -> float:
        return sum(seconds for _, seconds in train(WARM_UP_STEPS + steps)[WARM_UP_STEPS:]) / steps

    def matmul_flops(repeats: int) -> float:
        return 0.0  # Not known; the other engines tell the limit.

    return {action.__name__: action for action in (first_step, seconds_per_step, matmul_flops)}


def main() -> None:
    specification, folder = sys.argv[1:]
    _common.serve(lambda: _actions(Case(**json.loads(specification)), Path(folder)))


if __name__ == "__main__":
    main()
