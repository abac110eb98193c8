#!/usr/bin/env python
"""Training steps of this package, of KerasHub's layers, of torch.nn.Transformer and of Marian.

Each engine runs in a process of its own, on 2 CPU threads, and sleeps while another one steps, so
that whatever else happens on the machine meets all alike. Of its settings (float32 or bfloat16,
compiled or not) each keeps the one that is fastest in the first rounds. A rate, in target tokens,
is that of the median round; a ratio is this package's rate over a peer's in the same rounds; a
share is the rate of a step's matrix products, counted from the sizes, over that of the best
float32 matrix product of any engine in the run. `base` needs 18 GiB of memory. Marian takes part
where `pymarian` is installed; its seconds are those of its log.
"""

import argparse
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from _common import Worker, limit_threads, table, write_json
from _training_engines import CASES, ENGINES, Case, Setting, settings_of, start_worker
from _training_marian import marian_worker
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


def compete(
    case: Case,
    backends: Sequence[str],
    rounds: int,
    progress: tqdm,
    keep_memory: bool = False,
) -> list[list[Measurement]]:
    """For each backend this package's measurement and its peers', made in the same rounds.

    Args:
        case: Sizes.
        backends: Backends of Keras.
        rounds: Timed rounds.
        progress: Counts turns.
        keep_memory: As for `settings_of`.
    """
    contests = []
    with (
        best_worker(case, "torch.nn.Transformer", "torch", progress, keep_memory) as plain_torch,
        marian(case, progress) if has_marian() else nullcontext({}) as with_marian,
    ):
        for backend in backends:
            with (
                best_worker(case, "keras_transformer", backend, progress, keep_memory) as ours,
                best_worker(case, "keras_hub", backend, progress, keep_memory) as keras_hub,
            ):
                workers = {**ours, **keras_hub, **plain_torch, **with_marian}
                contests.append(take_turns(workers, case, rounds, progress))
    return contests


@contextmanager
def best_worker(
    case: Case, engine: str, backend: str, progress: tqdm, keep_memory: bool
) -> Iterator[dict[Setting, Worker]]:
    """Try all settings of an engine and keep the worker with the fastest turn."""
    with ExitStack() as stack:
        workers = {
            setting: stack.enter_context(start_worker(case, setting))
            for setting in settings_of(engine, backend, keep_memory)
        }
        make_first_steps(workers, case, progress)
        trial = take_turns(workers, case, QUALIFYING_ROUNDS, progress)
        for measurement in trial:
            rate = case.target_tokens / min(measurement.seconds)
            progress.write(f"{case.name}: {measurement.setting}: {rate:,.0f} tokens/s at first")
        best = fastest(trial).setting
        for setting in workers.keys() - {best}:
            workers[setting].close()
        yield {best: workers[best]}


def has_marian() -> bool:
    return importlib.util.find_spec("_pymarian") is not None


@contextmanager
def marian(case: Case, progress: tqdm) -> Iterator[dict[Setting, Worker]]:
    """Start Marian's worker."""
    with marian_worker(case) as worker:
        workers = {Setting("marian", "marian"): worker}
        make_first_steps(workers, case, progress)
        yield workers


def make_first_steps(workers: Mapping[Setting, Worker], case: Case, progress: tqdm) -> None:
    """Compile, all at the same time, and show that all do the same work."""
    for worker in workers.values():
        worker.send("first_step")
    for setting, worker in workers.items():
        progress.set_description(f"{case.name}: {setting}, first step")
        first = worker.receive()
        progress.write(
            f"{case.name}: {setting}: {first['num_parameters']:,} parameters, "
            f"first loss {first['loss']:.2f} nats"
        )
        progress.update()


def fastest(measurements: Sequence[Measurement]) -> Measurement:
    """The one with the fastest turn: so few turns have no meaningful median."""
    return min(measurements, key=lambda measurement: min(measurement.seconds))


def take_turns(
    workers: Mapping[Setting, Worker], case: Case, rounds: int, progress: tqdm
) -> list[Measurement]:
    seconds: dict[Setting, list[float]] = {setting: [] for setting in workers}
    matmul_flops = dict.fromkeys(workers, 0.0)
    turns = list(workers.items())
    for _ in range(rounds):
        for setting, worker in turns:
            progress.set_description(f"{case.name}: {setting}")
            steps = STEPS_PER_TURN[case.name]
            seconds[setting].append(worker.ask("seconds_per_step", steps))
            matmul_flops[setting] = max(matmul_flops[setting], worker.ask("matmul_flops", 3))
            progress.update()
        turns.append(turns.pop(0))  # so that no engine always has the first turn
    return [Measurement(case, s, seconds[s], matmul_flops[s]) for s in workers]


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


def report(contests: Sequence[Sequence[Measurement]], limit_flops: float) -> list[dict[str, Any]]:
    """A row for this package against each peer, and one for each peer.

    Args:
        contests: What `compete` returned, of all cases.
        limit_flops: What shares are of, in floating point operations a second.
    """
    peers = pool([peer for _, *peers in contests for peer in peers])
    pairs: list[tuple[Measurement, Measurement | None]]
    pairs = [(ours, peer) for ours, *peers in contests for peer in peers]
    pairs += [(peer, None) for peer in peers]
    return [row(measured, peer, limit_flops) for measured, peer in pairs]


def row(measured: Measurement, peer: Measurement | None, limit_flops: float) -> dict[str, Any]:
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
        "share": round(rate * flops_per_token / limit_flops, 3),
    }


def turns_of_case(backends: Sequence[str], rounds: int) -> int:
    """Turns, first steps included, that `compete` will take."""
    pairs = [("torch.nn.Transformer", "torch")]
    pairs += [(engine, b) for engine in ("keras_transformer", "keras_hub") for b in backends]
    settings = sum(len(settings_of(*pair)) for pair in pairs)
    of_marian = int(has_marian())
    engines = len(ENGINES) + of_marian
    return settings * (1 + QUALIFYING_ROUNDS) + of_marian + len(backends) * engines * rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=list(CASES), help="default: all")
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all three"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; default: 5")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="peers keep freed memory too, see docs/benchmarks",
    )
    parser.add_argument("--json", type=Path, help="file to write the table's rows to")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1. Received: --rounds {arguments.rounds}")
    if arguments.json and not arguments.json.parent.is_dir():
        parser.error(f"--json must name a file in an existing folder. Received: {arguments.json}")

    limit_threads()
    chosen = [CASES[arguments.case]] if arguments.case else list(CASES.values())
    turns = turns_of_case(arguments.backends, arguments.rounds)
    with tqdm(total=len(chosen) * turns, unit="turn") as progress:
        contests = [
            contest
            for case in chosen
            for contest in compete(
                case, arguments.backends, arguments.rounds, progress, arguments.keep_memory
            )
        ]
    best_matmul = max(m.matmul_flops for m in chain.from_iterable(contests))
    rows = report(contests, best_matmul)
    formats = {"tokens_per_s": ",.0f", "ratio": ".2f", "share": ".2f"}
    print(f"\n{table(rows, formats)}")
    print(f"best float32 matrix product: {best_matmul / 1e9:,.0f} GFLOP/s")
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
