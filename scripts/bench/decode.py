#!/usr/bin/env python
"""Searches of this package, of KerasHub's layers, of Hugging Face Marian and of CTranslate2.

All have the same weights and decode the same sentences to the same length; whether they find the
same tokens is checked first. Each engine runs in a process of its own, on 2 CPU threads, and sleeps
while another one decodes, so that whatever else happens on the machine meets all alike. Of its
settings (compiled by XLA or not, 1 or 2 threads) each keeps the one that is fastest in the first
rounds. A rate, in target tokens of the best hypotheses, is that of the median round; a ratio is
this package's rate over a peer's in the same rounds; `same` is the share of sentences for which
the peer found the tokens that this package found in float32, or such whose log-probability differs
by less than 1e-4 nats (of 8-bit weights no more than likeness can be expected). `share` is the rate
of a search's matrix products, counted from the sizes, over that of the best float32 matrix product
of this package's backends: the limit of large batches. `read` is the rate at which float32 weights
are read, all of the decoder's at every step, over that of the best product of a vector and a large
matrix: the limit of a single sentence, where caches do not help. Tokenization is not timed.

With --baseline, nothing but this package is measured, in turn with another checkout of it, for
example `git worktree add ../old COMMIT`. `ratio` is the median over the rounds of the other's
seconds over ours. With --run and --text too, both translate the file, after --sentences-before
sentences: this package searches with few compiled programs at first.

With --run and --text, tokenization is timed: a trained run translates a file, beside CTranslate2
with what is exported from that run, both with beam 5 and no length penalty; with --shortlist, this
package also translates with the run's shortlist. With --lengths the cost of a token is measured
against the length of the translation, and a line is fitted.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _common import Worker, limit_threads, table, write_json
from _decoding_baseline import FORMATS as BASELINE_FORMATS, SECONDS_PER_TURN, measure_baseline_cases
from _decoding_baseline_file import measure_baseline_file
from _decoding_engines import (
    CASES,
    ENGINES,
    OURS,
    Case,
    Setting,
    comparable,
    groups_of,
    prepare,
    start_worker,
)
from _decoding_file import measure_file
from _decoding_lengths import measure_lengths
from tqdm import tqdm

BACKENDS = ("tensorflow", "jax", "torch")
QUALIFYING_ROUNDS = 2
SENTENCES_BEFORE = 18000  # so that this package no longer searches with few shapes
TIE = 1e-4  # nats
FORMATS = {
    "tokens_per_s": ",.0f",
    "ratio": ".2f",
    "same": ".1%",
    "share": ".2f",
    "read": ".2f",
    "peak_memory_mib": ",.0f",
}
EXAMPLES = """examples:
  scripts/bench/decode.py --json decode.json
  scripts/bench/decode.py --case tiny-1x1 --engines keras_transformer ctranslate2 --backends jax
  scripts/bench/decode.py --run runs/multi30k_en_de --text test2016.en --json file.json
  scripts/bench/decode.py --lengths lengths.png --json lengths.json
  scripts/bench/decode.py --baseline ../old --json baseline.json
  scripts/bench/decode.py --baseline ../old --run runs/multi30k_en_de --text test2016.en
"""


@dataclass(frozen=True)
class Measurement:
    """Seconds per search, one figure a round, and what else a worker told.

    `same` is the share of sentences with the same tokens as this package's in float32, ties
    included; None for itself, and where it did not take part.
    """

    case: Case
    setting: Setting
    seconds: list[float]
    peak_memory_mib: float
    matmul_flops: float = 0.0
    bytes_per_s: float = 0.0
    same: float | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.case.target_tokens / median(self.seconds)


def compete(
    case: Case,
    engines: Sequence[str],
    backends: Sequence[str],
    rounds: int,
    folder: Path,
    progress: tqdm,
) -> list[list[Measurement]]:
    """For each backend the measurements of all engines, made in the same rounds.

    Args:
        folder: Holds what the engines load; is filled if it does not exist.
    """
    if not folder.exists():
        progress.set_description(f"{case.name}: preparing")
        prepare(case, engines, folder, backends[0])
    of_backend = [engine for engine in engines if engine in (OURS, "keras_hub")]
    others = [engine for engine in engines if engine not in of_backend]
    contests = []
    with best_workers(case, groups_of(others, backends), folder, progress) as peers:
        for backend in backends if of_backend else backends[:1]:
            groups = groups_of(of_backend, [backend])
            with best_workers(case, groups, folder, progress) as own:
                contests.append(measure({**own, **peers}, case, rounds, progress))
    return contests


@contextmanager
def best_workers(
    case: Case, groups: Iterable[Sequence[Setting]], folder: Path, progress: tqdm
) -> Iterator[dict[Setting, "Decoder"]]:
    """Try all settings of each group and keep the worker with the fastest turn."""
    with ExitStack() as stack:
        kept = {}
        for group in groups:
            decoders = {}
            for setting in group:
                worker = stack.enter_context(start_worker(case, setting, folder))
                progress.set_description(f"{case.name}: {setting}, first search")
                decoders[setting] = Decoder(worker, worker.ask("tokens", case.target_length))
                progress.update()
            best = group[0]
            if len(group) > 1:
                trial = take_turns(decoders, case, QUALIFYING_ROUNDS, progress)
                best = min(trial, key=lambda setting: min(trial[setting]))
            for setting in decoders.keys() - {best}:
                decoders[setting].worker.close()
            kept[best] = decoders[best]
        yield kept


@dataclass(frozen=True)
class Decoder:
    """A worker, and what it decoded first."""

    worker: Worker
    tokens: list[list[int]]


def take_turns(
    decoders: Mapping[Setting, Decoder], case: Case, rounds: int, progress: tqdm
) -> dict[Setting, list[float]]:
    """Seconds per search of each, one figure a round."""
    seconds: dict[Setting, list[float]] = {setting: [] for setting in decoders}
    turns = list(decoders.items())
    for _ in range(rounds):
        for setting, decoder in turns:
            progress.set_description(f"{case.name}: {setting}")
            arguments = (case.target_length, SECONDS_PER_TURN)
            seconds[setting].append(decoder.worker.ask("seconds_per_search", *arguments))
            progress.update()
        turns.append(turns.pop(0))  # so that no engine always has the first turn
    return seconds


def measure(
    decoders: Mapping[Setting, Decoder], case: Case, rounds: int, progress: tqdm
) -> list[Measurement]:
    """Rounds of all, and only then what needs further memory."""
    seconds = take_turns(decoders, case, rounds, progress)
    memory = {s: decoder.worker.ask("peak_memory_mib") for s, decoder in decoders.items()}
    ours = next((s for s in decoders if (s.engine, s.dtype) == (OURS, "float32")), None)
    measurements = []
    for setting, decoder in decoders.items():
        measured = Measurement(case, setting, seconds[setting], memory[setting])
        if setting == ours:
            limits = {name: decoder.worker.ask(name, 3) for name in ("matmul_flops", "bytes_per_s")}
            measured = replace(measured, **limits)
        elif ours:
            measured = replace(measured, same=agreement(decoders[ours], decoder.tokens))
        progress.write(f"{case.name}: {setting}: {measured.tokens_per_s:,.0f} tokens/s")
        measurements.append(measured)
    return measurements


def agreement(ours: Decoder, tokens: list[list[int]]) -> float:
    """Share of the sentences for which `tokens` are ours, or as probable as ours."""
    rows = [i for i, mine in enumerate(ours.tokens) if mine != tokens[i]]
    if not rows:
        return 1.0
    mine, other = (
        np.array(ours.worker.ask("log_probabilities", rows, [ids[i] for i in rows]))
        for ids in (ours.tokens, tokens)
    )
    return 1 - float(np.mean(np.abs(mine - other) >= TIE)) * len(rows) / len(tokens)


def pool(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Join what was measured of one setting in the rounds of several backends."""
    pooled: dict[tuple[Case, Setting], list[Measurement]] = {}
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


def report(contests: Sequence[Sequence[Measurement]]) -> list[dict[str, Any]]:
    """A row for this package against each peer, and one for each peer.

    Args:
        contests: What `compete` returned, of all cases.
    """
    all_measured = list(chain.from_iterable(contests))
    limits = [
        max(getattr(m, name) for m in all_measured) for name in ("matmul_flops", "bytes_per_s")
    ]
    pairs: list[tuple[Measurement, Measurement | None]] = []
    everyone = []
    for contest in contests:
        peers = [m for m in contest if m.setting.engine != OURS]
        everyone += peers
        for ours in contest:
            if ours.setting.engine == OURS:
                compared = [p for p in peers if comparable(ours.setting, p.setting)]
                pairs += [(ours, peer) for peer in compared or [None]]
    pairs += [(peer, None) for peer in pool(everyone)]
    return [row(measured, peer, *limits) for measured, peer in pairs]


def row(
    measured: Measurement, peer: Measurement | None, best_matmul: float, best_read: float
) -> dict[str, Any]:
    rate, case = measured.tokens_per_s, measured.case
    flops = rate * case.flops / case.target_tokens
    read = rate * case.weight_bytes / case.batch_size
    is_float32 = measured.setting.dtype == "float32"
    return {
        "case": measured.case.name,
        "engine": measured.setting.engine,
        "backend": measured.setting.backend,
        "dtype": measured.setting.dtype,
        "tokens_per_s": round(rate, 1),
        "ratio_to": peer and f"{peer.setting.engine} {peer.setting.dtype}",
        "ratio": peer and round(rate / peer.tokens_per_s, 3),
        "same": peer and peer.same,
        "share": round(flops / best_matmul, 3) if best_matmul else None,
        "read": round(read / best_read, 3) if best_read and is_float32 else None,
        "peak_memory_mib": round(measured.peak_memory_mib),
    }


def turns_of_case(engines: Sequence[str], backends: Sequence[str], rounds: int) -> int:
    """Turns, first searches included, that `compete` will take."""
    groups = groups_of(engines, backends)
    tried = sum(len(g) * (1 + (QUALIFYING_ROUNDS if len(g) > 1 else 0)) for g in groups)
    of_backend = sum(g[0].engine in (OURS, "keras_hub") for g in groups)
    others = len(groups) - of_backend
    return tried + rounds * (of_backend + others * (len(backends) if of_backend else 1))


def measure_cases(
    cases: Sequence[Case], engines: Sequence[str], backends: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    total = len(cases) * turns_of_case(engines, backends, rounds)
    contests = []
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="turn") as progress:
        for case in cases:
            place = Path(folder) / case.model
            contests += compete(case, engines, backends, rounds, place, progress)
    return report(contests)


def measure_baseline(
    checkout: Path, cases: Sequence[Case], backends: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_baseline_cases(checkout, cases, backends, rounds, Path(folder))
    print(f"\n{table(rows, BASELINE_FORMATS)}")
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=CASES, help="default: all")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=ENGINES, help="default: all"
    )
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all three"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; default: 5")
    parser.add_argument("--run", type=Path, help="folder of a trained run; needs --text")
    parser.add_argument("--text", type=Path, help="file to translate with the run, UTF-8")
    parser.add_argument(
        "--shortlist", action="store_true", help="translate the file also with a shortlist"
    )
    parser.add_argument("--lengths", type=Path, help="measure lengths, and plot to this file")
    parser.add_argument("--baseline", type=Path, help="another checkout of this repository")
    parser.add_argument(
        "--sentences-before",
        type=int,
        help="that a process has translated before it is timed; default: "
        f"{SENTENCES_BEFORE:,}; needs --baseline and --run",
    )
    parser.add_argument("--json", type=Path, help="file to write the table's rows to")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1. Received: --rounds {arguments.rounds}")
    if bool(arguments.run) != bool(arguments.text):
        parser.error("--run and --text go together")
    others = arguments.lengths or arguments.shortlist or arguments.engines != ENGINES
    if arguments.baseline and others:
        parser.error("--baseline goes with neither --lengths, --shortlist nor --engines")
    if arguments.sentences_before is not None and not (arguments.baseline and arguments.run):
        parser.error("--sentences-before needs --baseline, --run and --text")
    if arguments.sentences_before is not None and arguments.sentences_before < 1:
        parser.error("--sentences-before must be at least 1")
    if arguments.case and arguments.run:
        parser.error("--case does not go with --run")
    if arguments.shortlist and not arguments.run:
        parser.error("--shortlist needs --run and --text")
    for name in ("json", "lengths"):
        path = getattr(arguments, name)
        if path and not path.parent.is_dir():
            parser.error(f"--{name} must name a file in an existing folder. Received: {path}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    engines, backends, rounds = arguments.engines, arguments.backends, arguments.rounds
    limit_threads()
    cases = [CASES[arguments.case]] if arguments.case else list(CASES.values())
    file = (arguments.run, arguments.text)
    if arguments.baseline and arguments.run:
        options = (backends, arguments.sentences_before or SENTENCES_BEFORE, rounds)
        rows = measure_baseline_file(arguments.baseline.resolve(), *file, *options)
    elif arguments.baseline:
        rows = measure_baseline(arguments.baseline.resolve(), cases, backends, rounds)
    elif arguments.run:
        rows = measure_file(*file, engines, backends, rounds, arguments.shortlist)
    elif arguments.lengths:
        rows = measure_lengths(arguments.lengths, engines, backends, rounds)
    else:
        rows = measure_cases(cases, engines, backends, rounds)
        print(f"\n{table(rows, FORMATS)}")
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
