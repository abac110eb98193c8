#!/usr/bin/env python
"""Training steps of this package, of KerasHub's layers and of torch.nn.Transformer, in turn.

Each engine runs in a process of its own, on 2 CPU threads, and sleeps while another one steps, so
that whatever else happens on the machine meets all alike. Of its settings (float32 or bfloat16,
compiled or not) each keeps the one that is fastest in the first rounds. A rate, in target tokens,
is that of the median round; a ratio is this package's rate over a peer's in the same rounds; a
share is the rate of a step's matrix products, counted from the sizes, over that of the best
float32 matrix product of any engine in the run.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from _common import Worker, limit_threads, table, write_json
from _training_engines import CASES, ENGINES, Case, Setting, settings_of, start_worker
from tqdm import tqdm

BACKENDS = ("tensorflow", "jax", "torch")
QUALIFYING_ROUNDS = 2
STEPS_PER_TURN = {"tiny": 2, "base": 1}
EXAMPLES = """examples:
  scripts/bench/train_step.py --json train_step.json
  scripts/bench/train_step.py --case tiny --backends jax torch --rounds 9
"""


@dataclass(frozen=True)
class Measurement:
    """Seconds per training step, one figure a round, and the best float32 matrix product."""

    case: Case
    setting: Setting
    seconds: list[float]
    matmul_flops: float

    @property
    def tokens_per_s(self) -> float:
        return self.case.target_tokens / median(self.seconds)


def compete(case: Case, backend: str, rounds: int, progress: tqdm) -> list[Measurement]:
    """One measurement per engine at its best setting, this package's first."""
    with ExitStack() as stack:
        workers = {
            setting: stack.enter_context(start_worker(case, setting))
            for setting in settings_of(backend)
        }
        make_first_steps(workers, f"{case.name} on {backend}", progress)
        trial = take_turns(workers, case, QUALIFYING_ROUNDS, progress)
        for measurement in trial:
            rate = case.target_tokens / min(measurement.seconds)
            progress.write(f"  {measurement.setting}: {rate:,.0f} tokens/s at first")
        best = best_of_each_engine(trial)
        return take_turns({m.setting: workers[m.setting] for m in best}, case, rounds, progress)


def make_first_steps(workers: Mapping[Setting, Worker], title: str, progress: tqdm) -> None:
    """Compile, all at the same time, and show that all do the same work."""
    progress.write(title)
    progress.set_description(f"{title}, compiling")
    for worker in workers.values():
        worker.send("first_step")
    for setting, worker in workers.items():
        first = worker.receive()
        progress.write(
            f"  {setting}: {first['num_parameters']:,} parameters, loss {first['loss']:.2f}"
        )
        progress.update()


def take_turns(
    workers: Mapping[Setting, Worker], case: Case, rounds: int, progress: tqdm
) -> list[Measurement]:
    seconds: dict[Setting, list[float]] = {setting: [] for setting in workers}
    matmul_flops = dict.fromkeys(workers, 0.0)
    turns = list(workers.items())
    for _ in range(rounds):
        for setting, worker in turns:
            progress.set_description(f"{case.name}, {setting}")
            seconds[setting].append(worker.ask("seconds_per_step", STEPS_PER_TURN[case.name]))
            matmul_flops[setting] = max(matmul_flops[setting], worker.ask("matmul_flops", 3))
            progress.update()
        turns.append(turns.pop(0))  # so that no engine always has the first turn
    return [Measurement(case, s, seconds[s], matmul_flops[s]) for s in workers]


def best_of_each_engine(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The setting with the fastest turn, in the order in which the engines come."""
    best: dict[str, Measurement] = {}
    for measurement in measurements:
        rival = best.setdefault(measurement.setting.engine, measurement)
        if min(measurement.seconds) < min(rival.seconds):
            best[measurement.setting.engine] = measurement
    return list(best.values())


def pool(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Join what was measured of one setting in the rounds of several backends."""
    pooled: dict[tuple[Case, Setting], list[Measurement]] = {}
    for measurement in measurements:
        pooled.setdefault((measurement.case, measurement.setting), []).append(measurement)
    return [
        Measurement(
            *key,
            seconds=list(chain.from_iterable(m.seconds for m in same)),
            matmul_flops=max(m.matmul_flops for m in same),
        )
        for key, same in pooled.items()
    ]


def report(contests: Sequence[Sequence[Measurement]]) -> list[dict[str, Any]]:
    """A row for this package against each peer, and one for each peer.

    Args:
        contests: What `compete` returned, for each case and backend.
    """
    best_matmul = max(m.matmul_flops for m in chain.from_iterable(contests))
    peers = pool([peer for _, *peers in contests for peer in peers])
    pairs = [(ours, peer) for ours, *peers in contests for peer in peers]
    pairs += [(peer, None) for peer in peers]
    return [row(measured, peer, best_matmul) for measured, peer in pairs]


def row(measured: Measurement, peer: Measurement | None, best_matmul: float) -> dict[str, Any]:
    rate = measured.tokens_per_s
    flops_per_token = measured.case.flops / measured.case.target_tokens
    return {
        "case": measured.case.name,
        "engine": measured.setting.engine,
        "backend": measured.setting.backend,
        "dtype": measured.setting.dtype,
        "tokens_per_s": round(rate, 1),
        "ratio_to": peer and f"{peer.setting.engine} {peer.setting.dtype}",
        "ratio": peer and round(rate / peer.tokens_per_s, 3),
        "share": round(rate * flops_per_token / best_matmul, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=CASES, help="default: both")
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all three"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; default: 5")
    parser.add_argument("--json", type=Path, help="file to write the table's rows to")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1. Received: --rounds {arguments.rounds}")
    if arguments.json and not arguments.json.parent.is_dir():
        parser.error(f"--json must name a file in an existing folder. Received: {arguments.json}")

    limit_threads()
    cases = [CASES[arguments.case]] if arguments.case else list(CASES.values())
    turns = sum(
        len(settings_of(backend)) * (1 + QUALIFYING_ROUNDS) + len(ENGINES) * arguments.rounds
        for backend in arguments.backends
    )
    with tqdm(total=len(cases) * turns, unit="turn") as progress:
        contests = [
            compete(case, backend, arguments.rounds, progress)
            for case in cases
            for backend in arguments.backends
        ]
    rows = report(contests)
    formats = {"tokens_per_s": ",.0f", "ratio": ".2f", "share": ".2f"}
    print(f"\n{table(rows, formats)}")
    best_matmul = max(m.matmul_flops for m in chain.from_iterable(contests))
    print(f"share of {best_matmul / 1e9:,.0f} GFLOP/s, the best float32 matrix product")
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
