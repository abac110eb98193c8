"""Engines that compete: workers that take turns in the same rounds, and what their rates say."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from _common import Worker
from _engines import OURS, Setting
from tqdm import tqdm

QUALIFYING_ROUNDS = 2
Side = Setting | str  # a string is the name of a checkout


@dataclass(frozen=True)
class Measurement:
    """Seconds, one figure a round, and what else a worker told.

    `same` is the share of sentences with the same tokens as this package's in float32, ties
    included; None for itself, and where it did not take part.
    """

    case: Any
    setting: Setting
    seconds: list[float]
    peak_memory_mib: float = 0.0
    matmul_flops: float = 0.0
    bytes_per_s: float = 0.0
    same: float | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.case.target_tokens / median(self.seconds)


@dataclass(frozen=True)
class Entrant:
    """A worker, and its first reply."""

    worker: Worker
    first: Any


@dataclass(frozen=True)
class Contest:
    """How workers start, and what they are asked for at first and in each turn.

    A turn's reply is its seconds.
    """

    name: str
    start: Callable[[Side], Worker]
    first: Sequence[Any]
    turn: Sequence[Any]
    progress: tqdm

    @contextmanager
    def best(self, groups: Iterable[Sequence[Side]]) -> Iterator[dict[Side, Entrant]]:
        """Try all settings of each group and keep the worker with the fastest turn."""
        with ExitStack() as stack:
            kept = {}
            for group in groups:
                entrants = {setting: self._enter(setting, stack) for setting in group}
                best = group[0]
                if len(group) > 1:
                    trial = self.take_turns(entrants, QUALIFYING_ROUNDS)
                    best = min(trial, key=lambda setting: min(trial[setting]))
                for setting in entrants.keys() - {best}:
                    entrants[setting].worker.close()
                kept[best] = entrants[best]
            yield kept

    def _enter(self, setting: Side, stack: ExitStack) -> Entrant:
        worker = stack.enter_context(self.start(setting))
        self.progress.set_description(f"{self.name}: {setting}, first turn")
        entrant = Entrant(worker, worker.ask(*self.first))
        self.progress.update()
        return entrant

    def take_turns(self, entrants: Mapping[Side, Entrant], rounds: int) -> dict[Side, list[float]]:
        """Seconds of each, one figure a round."""
        seconds: dict[Side, list[float]] = {setting: [] for setting in entrants}
        turns = list(entrants.items())
        for _ in range(rounds):
            for setting, entrant in turns:
                self.progress.set_description(f"{self.name}: {setting}")
                seconds[setting].append(entrant.worker.ask(*self.turn))
                self.progress.update()
            turns.append(turns.pop(0))  # so that no engine always has the first turn
        return seconds


def comparable(ours: Setting, peer: Setting) -> bool:
    """8-bit weights are compared with 8-bit weights only, all others with everything."""
    return ours.dtype != "int8" or peer.dtype == "int8"


def pairs_of(
    contests: Sequence[Sequence[Measurement]],
) -> list[tuple[Measurement, Measurement | None]]:
    """This package against each peer of the same contest, then each peer for itself."""
    pairs: list[tuple[Measurement, Measurement | None]] = []
    peers = []
    for contest in contests:
        rivals = [m for m in contest if m.setting.engine != OURS]
        peers += rivals
        for ours in contest:
            if ours.setting.engine == OURS:
                compared = [p for p in rivals if comparable(ours.setting, p.setting)]
                pairs += [(ours, peer) for peer in compared or [None]]
    return pairs + [(peer, None) for peer in pool(peers)]


def pool(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Join what was measured of one setting in the rounds of several backends."""
    pooled: dict[tuple[Any, Setting], list[Measurement]] = {}
    for measurement in measurements:
        pooled.setdefault((measurement.case, measurement.setting), []).append(measurement)
    return [
        Measurement(
            *key,
            seconds=list(chain.from_iterable(m.seconds for m in same)),
            peak_memory_mib=max(m.peak_memory_mib for m in same),
        )
        for key, same in pooled.items()
    ]


def row(measured: Measurement, peer: Measurement | None, best_matmul: float) -> dict[str, Any]:
    """`share` is the rate of the matrix products, over that of the best float32 product."""
    rate = measured.tokens_per_s
    flops = rate * measured.case.flops / measured.case.target_tokens
    return {
        "case": measured.case.name,
        "engine": measured.setting.engine,
        "backend": measured.setting.backend,
        "dtype": measured.setting.dtype,
        "tokens_per_s": round(rate, 1),
        "ratio_to": peer and f"{peer.setting.engine} {peer.setting.dtype}",
        "ratio": peer and round(rate / peer.tokens_per_s, 3),
        "share": round(flops / best_matmul, 3) if best_matmul else None,
    }
