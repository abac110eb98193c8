#!/usr/bin/env python
"""Speed, memory and numerics of training and decoding on one GPU, beside peers.

Training is that of the paper's `base` and `big`, V = 37,000, batches of 16,384 + 16,384 tokens in
bfloat16, through `fit`. A share is the rate of the step's matrix products, counted from the sizes,
over `--peak`, the data sheet's rate of the card: the model FLOP/s utilization. Decoding is that of
`base` with random weights, 32 source and 64 target tokens. With `--data-dir`, the recipe
`tatoeba_en_de` is trained and evaluated, too, which takes some minutes on each backend.

Each check is a process of its own. As many as fit into the GPU's memory compile at the same time;
then each is timed while the others sleep. The results so far are always in `OUT/gpu.json`. With
`--baseline`, the training of this package is also measured with the code of another checkout.
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import ROOT, Worker, table
from _decoding_engines import Case as DecodingCase
from _gpu_checks import Check, to_json
from _training_engines import Case

GIGABYTES = 75  # of the smallest card that these checks are for
SECONDS = {"prepare": 200, "measure": 60, "profile": 60, "recipe": 600}
CASES = (
    Case("base", 6, 512, 8, 2048, 37_000, 256, 64, 64),
    Case("big", 6, 1024, 16, 4096, 37_000, 256, 64, 64),
)
TINY = Case("tiny", 4, 128, 4, 256, 10_000, 256, 16, 16)
SMALL = Case("small", 2, 64, 2, 128, 500, 8, 64, 64)  # some kernels fail for 64 keys only
DECODING = tuple(
    DecodingCase(name, 6, 512, 8, 2048, 37_000, batch_size, 32, 64, beam_size=beam_size)
    for name, batch_size, beam_size in (("beam 64x4", 64, 4), ("greedy 64x1", 64, 1), ("1x1", 1, 1))
)
TRAINING_GB = {"base": 8.6, "big": 16.0}
VARIANTS = [("torch", x) for x in ("attention", "combo_kernels", "coordinate_descent_tuning")]
VARIANTS += [("torch", x) for x in ("max_autotune_gemm", "triton.mix_order_reduction")]
VARIANTS += [("torch", "triton.enable_pdl"), ("jax", "xla_gpu_enable_pdl")]
EXAMPLES = """examples:
  scripts/bench/gpu.py --out results
  scripts/bench/gpu.py --out results --against older/gpu.json
  scripts/bench/gpu.py --out results --only 'train torch*' ceilings --profile 'train*'
  scripts/bench/gpu.py --out results --only 'recipe torch*' --data-dir tatoeba --minutes 10
  KERAS_BACKEND=tensorflow python scripts/bench/_tensorflow_program.py base base.stablehlo
  scripts/bench/gpu.py --out results --only '*TensorFlow*' --tensorflow-program base.stablehlo
  scripts/bench/gpu.py --out results --cpu
"""


def all_checks(
    backends: Sequence[str], data: Path | None = None, program: Path | None = None
) -> Iterator[Check]:
    """The checks, the most important ones first."""
    base, big = CASES
    yield Check("ceilings", "torch", "torch", CASES)
    for backend in backends:
        yield Check(f"numerics {backend}", "ours", backend, (SMALL,), gigabytes=2)
    for case in CASES:
        for backend in backends:
            gigabytes = TRAINING_GB[case.name]
            yield Check(f"train {backend} {case.name}", "ours", backend, (case,), "auto", gigabytes)
    yield Check("train keras_hub base", "keras_hub", "jax", (base,), True, 20)
    torch_peer = "torch.nn.Transformer"
    yield Check("train nn.Transformer compiled base", torch_peer, "torch", (base,), True, 16)
    yield Check("train nn.Transformer base", torch_peer, "torch", (base,), False, 18)
    for backend in backends:
        yield Check(f"decode {backend}", "ours", backend, DECODING)
    if "torch" in backends:
        yield Check("decode torch compiled", "ours", "torch", DECODING, jit_compile=True)
    yield Check("decode hugging_face", "marian", "torch", DECODING)
    yield Check("decode ctranslate2", "ctranslate2", "torch", DECODING)
    yield Check("train keras_hub big", "keras_hub", "jax", (big,), True, 30)
    yield Check("train nn.Transformer compiled big", torch_peer, "torch", (big,), True, 24)
    yield Check("train nn.Transformer big", torch_peer, "torch", (big,), False, 28)
    for backend in backends:
        yield Check(f"train {backend} tiny", "ours", backend, (TINY,))
        yield Check(f"restart {backend} base", "ours", backend, (base,), "auto", GIGABYTES)
    for case in CASES:
        for backend in backends:
            name, gigabytes = f"train {backend} {case.name} by formulas", 2 * TRAINING_GB[case.name]
            yield Check(name, "ours", backend, (case,), "auto", gigabytes, by_formulas=True)
    for backend, variant in (x for x in VARIANTS if x[0] in backends):
        name, gigabytes = f"train {backend} base, other {variant}", TRAINING_GB["base"]
        yield Check(name, "ours", backend, (base,), "auto", gigabytes, variant=variant)
    if program:
        name = "train base, TensorFlow's program, compiled by JAX's XLA"
        yield Check(name, "tensorflow", "jax", (base,), True, 20, data=f"{program}")
    for backend in backends if data else ():
        name = f"recipe {backend} tatoeba_en_de"
        yield Check(name, "ours", backend, (), gigabytes=GIGABYTES, data=f"{data}")


def shrunk(check: Check) -> Check:
    """The same check with sizes for a CPU."""
    cases = []
    for case in check.cases:
        if isinstance(case, Case):
            cases.append(dataclasses.replace(SMALL, name=case.name, num_layers=1))
        else:
            sizes = {"num_layers": 1, "d_model": 64, "d_ff": 64, "vocabulary_size": 500}
            batch_size = min(2, case.batch_size)
            sizes |= {"target_length": 4, "batch_size": batch_size}
            cases.append(dataclasses.replace(case, **sizes))
    return dataclasses.replace(check, cases=tuple(cases), on_cpu=True)


def with_baseline(checks: Sequence[Check]) -> Iterator[Check]:
    """Puts before each training of this package the same one of the baseline's."""
    for check in checks:
        if (
            check.kind == "train"
            and check.engine == "ours"
            and not (check.by_formulas or check.variant)
        ):
            yield dataclasses.replace(check, name=f"{check.name} (baseline)")
        yield check


def waves(checks: Sequence[Check], gigabytes: float = GIGABYTES) -> list[list[Check]]:
    """Groups the checks, in their order, so that each group fits into the GPU's memory.

    What measures a second start is a group of its own, after the one with the first start.
    """
    groups: list[list[Check]] = []
    for check in checks:
        free = gigabytes - sum(x.gigabytes for x in groups[-1]) if groups else 0.0
        if check.gigabytes > free:
            groups.append([])
        groups[-1].append(check)
    return groups


class Results:
    """A row for each check, written to a file after each change."""

    def __init__(self, path: Path, peak: float) -> None:
        self._path, self._peak = path, peak
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, check: Check, **figures: Any) -> None:
        row = self.rows.setdefault(check.name, {})
        row.update(figures)
        if check.kind == "train" and "ms" in row:
            case = check.cases[0]
            row["tokens_per_s"] = case.target_tokens / row["ms"] * 1e3
            row["share"] = case.flops / row["ms"] / 1e9 / self._peak
        self._path.write_text(json.dumps(self.rows, indent=1))
        short = {
            k: v
            for k, v in figures.items()
            if k not in ("kernels", "parts") and not k.endswith("_each")
        }
        print(f"{check.name}: {short}", file=sys.stderr, flush=True)

    def table(self) -> str:
        lines = [line for name, row in self.rows.items() for line in _lines(name, row)]
        formats = {"ms": ",.2f", "tokens/s": ",.0f", "share": ".3f", "GB": ".1f", "start s": ".0f"}
        return table(lines, formats)


def _lines(name: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty = dict.fromkeys(("ms", "tokens/s", "share", "GB", "start s"))
    failure = row.get("error", "").strip().splitlines()[-1:]
    start = {"start s": row.get("start_s")}
    note = failure[0][:100] if failure else ""
    if "minutes" in row:
        note = f"{row['minutes']:.1f} min, {row['BLEU']:.2f} BLEU"
    searches = {k: v for k, v in row.items() if isinstance(v, dict) and "tokens_per_s" in v}
    for search, figures in searches.items():
        own = {"ms": figures["ms"], "tokens/s": figures["tokens_per_s"]}
        yield {"check": f"{name}, {search}", **empty, **own, **start, "note": note}
    if not searches:
        own = {"ms": row.get("ms"), "tokens/s": row.get("tokens_per_s")}
        own |= {"share": row.get("share"), "GB": row.get("gigabytes")}
        yield {"check": name, **empty, **own, **start, "note": note}


def compared(rows: dict[str, Any], older: dict[str, Any]) -> str:
    """A table of what both runs measured; a ratio above 1 means that this one is faster."""
    now, then = (
        {x["check"]: x["ms"] for name in run for x in _lines(name, run[name]) if x["ms"]}
        for run in (rows, older)
    )
    lines = [
        {"check": x, "ms": now[x], "older ms": then[x], "ratio": then[x] / now[x]}
        for x in now.keys() & then.keys()
    ]
    formats = {"ms": ",.2f", "older ms": ",.2f", "ratio": ".3f"}
    return table(sorted(lines, key=lambda x: x["ratio"]), formats) if lines else "nothing in common"


class Bench:
    """Runs groups of checks until the time is over."""

    def __init__(self, options: argparse.Namespace, results: Results, caches: str) -> None:
        self._options, self._results, self._caches = options, results, caches
        self._end = time.monotonic() + 60 * options.minutes

    def run(self, group: Sequence[Check]) -> None:
        workers: dict[Check, Worker] = {}
        begin = time.monotonic()
        try:
            for check in group:
                if self._seconds_left() < 1:
                    self._results.add(check, error="no time was left")
                    continue
                workers[check] = self._start(check)
                workers[check].send("prepare")
            for check in list(workers):
                if self._receive(workers, check, "prepare", SECONDS["prepare"], begin) is not None:
                    self._results.add(check, start_s=time.monotonic() - begin)
            for check in list(workers):
                self._measure(workers, check)
        finally:
            for worker in workers.values():
                worker.close()

    def _measure(self, workers: dict[Check, Worker], check: Check) -> None:
        actions = [] if check.kind == "restart" else ["measure"]
        is_profiled = check.kind in ("train", "decode") and _matches(check, self._options.profile)
        actions += ["profile"] * is_profiled
        for action in actions:
            if check in workers:
                workers[check].send(action)
                seconds = SECONDS.get(check.kind, SECONDS[action])
                figures = self._receive(workers, check, action, seconds)
                self._results.add(check, **(figures or {}))
        if check in workers:
            workers.pop(check).close()

    def _receive(
        self,
        workers: dict[Check, Worker],
        check: Check,
        action: str,
        seconds: float,
        begin: float | None = None,
    ) -> dict[str, Any] | None:
        """The reply of a worker; without one in time, the worker is closed and None returned."""
        begin = time.monotonic() if begin is None else begin
        limit = min(begin + seconds - time.monotonic(), self._seconds_left())
        try:
            return workers[check].receive(max(0.0, limit))
        except RuntimeError as error:
            self._results.add(check, error=f"{action}: {error}")
            workers.pop(check).close()
            return None

    def _seconds_left(self) -> float:
        return self._end - time.monotonic()

    def _start(self, check: Check) -> Worker:
        is_baseline = check.name.endswith("(baseline)")
        package = self._options.baseline if is_baseline else ROOT
        caches = f"{self._caches}/{'baseline' if is_baseline else 'this'}"
        environment = {
            "KERAS_BACKEND": check.backend,
            "PYTHONPATH": os.pathsep.join([f"{package}", os.environ.get("PYTHONPATH", "")]),
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
            "XDG_CACHE_HOME": caches,
        }
        if check.backend == "jax" and check.variant:
            environment["XLA_FLAGS"] = f"--{check.variant}=true"
        if not check.on_cpu:  # Workers share the GPU: none may take all of its memory at once.
            environment |= {
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
                "JAX_PLATFORMS": "cuda,cpu",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            }
        return Worker(Path(__file__).with_name("_gpu_checks.py"), to_json(check), **environment)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=layout)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument(
        "--only", nargs="+", metavar="PATTERN", help="names of checks to run, in this order"
    )
    parser.add_argument("--skip", nargs="+", metavar="PATTERN", default=[], help="or not to run")
    parser.add_argument("--backends", nargs="+", choices=("torch", "jax"), default=("torch", "jax"))
    parser.add_argument("--baseline", type=Path, help="another checkout to measure beside this")
    data = (
        "also train and evaluate tatoeba_en_de, whose en-de.tsv or en-de.tsv.gz is in this folder"
    )
    parser.add_argument("--data-dir", type=Path, help=data)
    program = "also time TensorFlow's step, from `_tensorflow_program.py base FILE`"
    parser.add_argument("--tensorflow-program", type=Path, metavar="FILE", help=program)
    parser.add_argument("--against", type=Path, help="gpu.json of an older run, to compare with")
    parser.add_argument("--minutes", type=float, default=8, help="time limit; default: 8")
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s of the card; default: 989")
    profile = "record the kernels of these, by part: products, attention, loss, ..."
    parser.add_argument("--profile", nargs="+", metavar="PATTERN", default=[], help=profile)
    parser.add_argument("--cpu", action="store_true", help="show with tiny sizes that this works")
    return parser.parse_args(words)


def chosen_checks(options: argparse.Namespace) -> list[Check]:
    checks = list(all_checks(options.backends, options.data_dir, options.tensorflow_program))
    if options.baseline:
        checks = list(with_baseline(checks))
    chosen = [x for pattern in options.only or ["*"] for x in checks if _matches(x, [pattern])]
    checks = [x for x in dict.fromkeys(chosen) if not _matches(x, options.skip)]
    return [shrunk(x) for x in checks] if options.cpu else checks


def _matches(check: Check, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(check.name, pattern) for pattern in patterns)


def main() -> None:
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "gpu.json", options.peak)
    with tempfile.TemporaryDirectory() as caches:
        bench = Bench(options, results, caches)
        for group in waves(chosen_checks(options)):
            bench.run(group)
    print(results.table())
    if options.against:
        print(compared(results.rows, json.loads(options.against.read_text())))


if __name__ == "__main__":
    main()
