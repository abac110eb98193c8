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
seconds over ours.

With --run and --text, tokenization is timed: a trained run translates a file, beside CTranslate2
with what is exported from that run, both with beam 5 and no length penalty; with --shortlist, this
package also translates with the run's shortlist.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from _common import Parser, limit_threads, show
from _contest import Contest, Entrant, Measurement, pairs_of, row as contest_row
from _decoding_baseline import FORMATS as BASELINE_FORMATS, SECONDS_PER_TURN, measure_baseline_cases
from _decoding_engines import CASES, ENGINES, Case, groups_of, prepare, start_worker
from _decoding_file import FORMATS as FILE_FORMATS, measure_file
from _engines import OURS, Setting
from tqdm import tqdm

OF_BACKEND = (OURS, "keras_hub")
LIMITS = ("matmul_flops", "bytes_per_s")
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
  scripts/bench/decode.py --baseline ../old --json baseline.json
"""


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
    of_backend = [engine for engine in engines if engine in OF_BACKEND]
    others = [engine for engine in engines if engine not in OF_BACKEND]
    first = ("tokens", case.target_length)
    turn = ("seconds_per_search", case.target_length, SECONDS_PER_TURN)
    start = partial(start_worker, case, folder)
    contest = Contest(case.name, start, first, turn, progress)
    contests = []
    with contest.best(groups_of(others, backends)) as peers:
        for backend in backends if of_backend else backends[:1]:
            with contest.best(groups_of(of_backend, [backend])) as own:
                contests.append(measure(case, contest, {**own, **peers}, rounds))
    return contests


def measure(
    case: Case, contest: Contest, entrants: Mapping[Setting, Entrant], rounds: int
) -> list[Measurement]:
    """Rounds of all, and only then what needs further memory."""
    seconds = contest.take_turns(entrants, rounds)
    memory = {s: entrant.worker.ask("peak_memory_mib") for s, entrant in entrants.items()}
    ours = next((s for s in entrants if (s.engine, s.dtype) == (OURS, "float32")), None)
    measurements = []
    for setting, entrant in entrants.items():
        measured = Measurement(case, setting, seconds[setting], memory[setting])
        if setting == ours:
            measured = replace(measured, **{name: entrant.worker.ask(name, 3) for name in LIMITS})
        elif ours:
            measured = replace(measured, same=agreement(entrants[ours], entrant.first))
        measurements.append(measured)
    return measurements


def agreement(ours: Entrant, tokens: list[list[int]]) -> float:
    """Share of the sentences for which `tokens` are ours, or as probable as ours."""
    rows = [i for i, mine in enumerate(ours.first) if mine != tokens[i]]
    if not rows:
        return 1.0
    mine, other = (
        np.array(ours.worker.ask("log_probabilities", rows, [ids[i] for i in rows]))
        for ids in (ours.first, tokens)
    )
    return 1 - float(np.mean(np.abs(mine - other) >= TIE)) * len(rows) / len(tokens)


def report(contests: Sequence[Sequence[Measurement]]) -> list[dict[str, Any]]:
    """A row for this package against each peer, and one for each peer.

    Args:
        contests: What `compete` returned, of all cases.
    """
    measured = list(chain.from_iterable(contests))
    limits = [max(getattr(m, name) for m in measured) for name in LIMITS]
    return [row(*pair, *limits) for pair in pairs_of(contests)]


def row(
    measured: Measurement, peer: Measurement | None, best_matmul: float, best_read: float
) -> dict[str, Any]:
    read = measured.tokens_per_s * measured.case.weight_bytes / measured.case.batch_size
    is_float32 = measured.setting.dtype == "float32"
    return {
        **contest_row(measured, peer, best_matmul),
        "same": peer and peer.same,
        "read": round(read / best_read, 3) if best_read and is_float32 else None,
        "peak_memory_mib": round(measured.peak_memory_mib),
    }


def measure_cases(
    cases: Sequence[Case], engines: Sequence[str], backends: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    contests = []
    with tempfile.TemporaryDirectory() as folder, tqdm(unit="turn") as progress:
        for case in cases:
            place = Path(folder) / case.model
            contests += compete(case, engines, backends, rounds, place, progress)
    return report(contests)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_argument("--case", choices=CASES, help="default: all")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=ENGINES, help="default: all"
    )
    parser.add_backends()
    parser.add_rounds(5)
    parser.add_argument("--run", type=Path, help="folder of a trained run; needs --text")
    parser.add_argument("--text", type=Path, help="file to translate with the run, UTF-8")
    parser.add_argument(
        "--shortlist", action="store_true", help="translate the file also with a shortlist"
    )
    parser.add_argument("--baseline", type=Path, help="another checkout of this repository")
    arguments = parser.parse()
    if bool(arguments.run) != bool(arguments.text):
        parser.error("--run and --text go together")
    if arguments.baseline and (arguments.run or arguments.engines != ENGINES):
        parser.error("--baseline goes with neither --run nor --engines")
    if arguments.case and arguments.run:
        parser.error("--case does not go with --run")
    if arguments.shortlist and not arguments.run:
        parser.error("--shortlist needs --run and --text")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    limit_threads()
    engines, options = arguments.engines, (arguments.backends, arguments.rounds)
    cases = [CASES[arguments.case]] if arguments.case else list(CASES.values())
    if arguments.baseline:
        rows = measure_baseline_cases(arguments.baseline.resolve(), cases, *options)
        show(rows, BASELINE_FORMATS, arguments.json)
    elif arguments.run:
        file = (arguments.run, arguments.text)
        rows = measure_file(*file, engines, *options, arguments.shortlist)
        show(rows, FILE_FORMATS, arguments.json)
    else:
        show(measure_cases(cases, engines, *options), FORMATS, arguments.json)


if __name__ == "__main__":
    main()
