#!/usr/bin/env python
"""Training steps of this package, of KerasHub's layers and of torch.nn.Transformer.

Each engine runs in a process of its own, on 2 CPU threads, and sleeps while another one steps, so
that whatever else happens on the machine meets all alike. Of its settings (float32 or bfloat16,
compiled or not) each keeps the one that is fastest in the first rounds. A rate, in target tokens,
is that of the median round; a ratio is this package's rate over a peer's in the same rounds; a
share is the rate of a step's matrix products, counted from the sizes, over that of the best
float32 matrix product of any engine in the run. `base` needs 18 GiB of memory.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from _common import Parser, limit_threads, show
from _contest import Contest, Entrant, Measurement, pairs_of, row
from _engines import OURS, Setting
from _training_engines import CASES, Case, settings_of, start_worker
from tqdm import tqdm

STEPS_PER_TURN = {"tiny": 2, "base": 1}
FORMATS = {"tokens_per_s": ",.0f", "ratio": ".2f", "share": ".2f"}
EXAMPLES = """examples:
  scripts/bench/train_step.py --json train_step.json
  scripts/bench/train_step.py --case tiny --backends jax torch --rounds 9
"""


def compete(
    case: Case, backends: Sequence[str], rounds: int, progress: tqdm, keep_memory: bool = False
) -> list[list[Measurement]]:
    """For each backend this package's measurement and its peers', made in the same rounds.

    Args:
        case: Sizes.
        backends: Backends of Keras.
        rounds: Timed rounds.
        progress: Counts turns.
        keep_memory: As for `settings_of`.
    """
    turn = ("seconds_per_step", STEPS_PER_TURN.get(case.name, 1))
    contest = Contest(case.name, partial(start_worker, case), ("first_step",), turn, progress)
    contests = []
    with contest.best([settings_of("torch.nn.Transformer", "torch", keep_memory)]) as plain_torch:
        for backend in backends:
            groups = [settings_of(engine, backend, keep_memory) for engine in (OURS, "keras_hub")]
            with contest.best(groups) as of_backend:
                contests.append(measure(case, contest, {**of_backend, **plain_torch}, rounds))
    return contests


def measure(
    case: Case, contest: Contest, entrants: Mapping[Setting, Entrant], rounds: int
) -> list[Measurement]:
    """Show that all do the same work, then time it."""
    for setting, entrant in entrants.items():
        contest.progress.write(
            f"{case.name}: {setting}: {entrant.first['num_parameters']:,} parameters, "
            f"first loss {entrant.first['loss']:.2f} nats"
        )
    seconds = contest.take_turns(entrants, rounds)
    return [
        Measurement(case, setting, seconds[setting], matmul_flops=best)
        for setting, entrant in entrants.items()
        for best in [entrant.worker.ask("matmul_flops", 3 * rounds)]
    ]


def main() -> None:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_argument("--case", choices=list(CASES), help="default: all")
    parser.add_backends()
    parser.add_rounds(5)
    parser.add_argument(
        "--keep-memory", action="store_true", help="peers keep freed memory too, as `train` does"
    )
    arguments = parser.parse()
    limit_threads()
    chosen = [CASES[arguments.case]] if arguments.case else list(CASES.values())
    options = (arguments.backends, arguments.rounds)
    contests = []
    with tqdm(unit="turn") as progress:
        for case in chosen:
            contests += compete(case, *options, progress, arguments.keep_memory)
    best_matmul = max(m.matmul_flops for m in chain.from_iterable(contests))
    show([row(*pair, best_matmul) for pair in pairs_of(contests)], FORMATS, arguments.json)
    print(f"best float32 matrix product: {best_matmul / 1e9:,.0f} GFLOP/s")


if __name__ == "__main__":
    main()
