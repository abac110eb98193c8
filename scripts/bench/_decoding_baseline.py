"""The searches of this package in turn with those of another checkout of it, in one run.

Each checkout runs its own workers, with its own scripts, so an older commit need not know today's
names. The random weights come from one seed, so both decode the same model.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import _common
import numpy as np
from _contest import Contest
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
    roots = {"ours": _common.ROOT, "baseline": checkout}
    rows = []
    with tempfile.TemporaryDirectory() as folder, tqdm(unit="turn") as progress:
        for case in cases:
            for backend in backends:
                start = partial(_start, case, backend, Path(folder), roots)
                first = ("tokens", case.target_length)
                turn = ("seconds_per_search", case.target_length, SECONDS_PER_TURN)
                contest = Contest(f"{case.name} on {backend}", start, first, turn, progress)
                names = {"case": case.name, "backend": backend}
                rows.append(names | _measure(contest, list(roots), rounds))
    return rows


def _measure(contest: Contest, sides: Sequence[str], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(PAIRS):
        with contest.best([[side] for side in sides]) as entrants:
            for side, found in contest.take_turns(entrants, rounds).items():
                seconds[side] += found
            tokens = [entrants[side].first for side in sides]
    return {
        **{side: round(median(found), 5) for side, found in seconds.items()},
        "ratio": round(median(b / a for a, b in zip(*seconds.values(), strict=True)), 3),
        "same": float(np.mean([a == b for a, b in zip(*tokens, strict=True)])),
    }


def _start(
    case: Case, backend: str, folder: Path, roots: Mapping[str, Path], side: str
) -> _common.Worker:
    program = roots[side] / "scripts" / "bench" / "_decoding_engines.py"
    folder /= f"{case.model}-{backend}-{side}"
    environment = {"PYTHONPATH": str(roots[side]), "KERAS_BACKEND": backend}
    if not folder.exists():
        with _common.Worker(program, "prepare", str(folder), **environment) as worker:
            worker.ask("prepare", asdict(case), [OURS])
    setting = {"engine": OURS, "backend": backend}  # only what an older `Setting` has too
    specification = json.dumps([asdict(case), setting])
    return _common.Worker(program, "decode", str(folder), specification, **environment)
