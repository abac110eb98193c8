"""The searches of this package in turn with those of another checkout of it, in one run.

Each checkout runs its own workers, with its own scripts, so an older commit need not know today's
names. The random weights come from one seed, so both decode the same model.
"""

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import _common
import numpy as np
from _decoding_engines import Case
from _engines import OURS
from tqdm import tqdm

SECONDS_PER_TURN = 0.5
PAIRS = 3  # The place of the weights in memory changes a process's speed by some per cent.
FORMATS = {"ours": ",.4f", "baseline": ",.4f", "ratio": ".3f", "same": ".1%"}


def measure_baseline_cases(
    checkout: Path, cases: Sequence[Case], backends: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    """One row per case and backend, with the median seconds of a search in float32.

    `PAIRS` pairs of fresh processes make all rounds each; each pair begins a round in turn.

    Args:
        checkout: The root of the other checkout.
    """
    rows = []
    total = len(cases) * len(backends) * PAIRS * rounds
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="round") as progress:
        for case in cases:
            for backend in backends:
                progress.set_description(f"{case.name} on {backend}")
                rows.append(_measure(checkout, case, backend, rounds, Path(folder), progress))
    return rows


def _measure(
    checkout: Path, case: Case, backend: str, rounds: int, folder: Path, progress: tqdm
) -> dict[str, Any]:
    seconds: list[list[float]] = [[], []]  # of ours and of the baseline
    request = ("seconds_per_search", case.target_length, SECONDS_PER_TURN)
    for _ in range(PAIRS):
        with ExitStack() as stack:
            workers = [
                stack.enter_context(_case_worker(root, case, backend, folder))
                for root in (_common.ROOT, checkout)
            ]
            tokens = [worker.ask("tokens", case.target_length) for worker in workers]
            order = [0, 1]
            for _ in range(rounds):
                for i in order:
                    seconds[i].append(workers[i].ask(*request))
                order.reverse()
                progress.update()
    ours, baseline = map(median, seconds)
    return {
        "case": case.name,
        "backend": backend,
        "ours": round(ours, 5),
        "baseline": round(baseline, 5),
        "ratio": round(median(b / a for a, b in zip(*seconds, strict=True)), 3),
        "same": float(np.mean([a == b for a, b in zip(*tokens, strict=True)])),
    }


def _case_worker(root: Path, case: Case, backend: str, folder: Path) -> _common.Worker:
    program = root / "scripts" / "bench" / "_decoding_engines.py"
    folder /= f"{case.model}-{backend}-{'ours' if root == _common.ROOT else 'baseline'}"
    environment = {"PYTHONPATH": str(root), "KERAS_BACKEND": backend}
    if not folder.exists():
        with _common.Worker(program, "prepare", str(folder), **environment) as worker:
            worker.ask("prepare", asdict(case), [OURS])
    setting = {"engine": OURS, "backend": backend}  # only what an older `Setting` has too
    specification = json.dumps([asdict(case), setting])
    return _common.Worker(program, "decode", str(folder), specification, **environment)
