#!/usr/bin/env python
"""Whole processes from start to exit: what a user waits who types `translate`, and its peers'.

The first lines of a text are translated with beam 5 and no length penalty, by `keras-transformer
translate` on each backend, and by short scripts with CTranslate2 and Hugging Face, all
with the weights of the same run. `first_s`: the process starts with empty caches and a new copy of
the run. `second_s`: it finds what the first process has left. The peers keep nothing, so they have
only `second_s`, like the imports of Keras. Figures are medians over rounds, in which all take
turns, on 2 CPU threads. `times_imports` is `second_s` divided by that of the backend's imports,
`times_ctranslate2` divided by that of CTranslate2's process. `same` is the share of lines equal to
CTranslate2's. A process that fails or writes another number of lines has a note, no figures, and
so has a peer whose package is missing. The run needs a joint vocabulary.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _common import ENVIRONMENT, ROOT, Parser, limit_threads, show
from tqdm import tqdm

from keras_transformer import Run, UserError, open_model
from keras_transformer.data.text_files import read_lines
from keras_transformer.formats import export_ctranslate2, export_hugging_face

BENCH = Path(__file__).parent
CACHES = ("XDG_CACHE_HOME", "KERAS_HOME")
NOT_COPIED = ("checkpoints", "logs", "store", "text")
SEARCH = ("--beam-size", "5", "--length-penalty", "0")
FORMATS = {
    "lines": ",d",
    "first_s": ".2f",
    "second_s": ".2f",
    "times_imports": ".2f",
    "times_ctranslate2": ".2f",
    "same": ".1%",
}
PEERS = {"ctranslate2": export_ctranslate2, "hugging_face": export_hugging_face}
EXAMPLES = """examples:
  scripts/bench/cold_start.py runs/multi30k_en_de --json cold_start.json
  scripts/bench/cold_start.py runs/multi30k_en_de --lines 1 --backends jax --rounds 5
"""


@dataclass(frozen=True)
class Way:
    """A command to measure.

    Args:
        name: For the table.
        command: Its arguments; "RUN" stands for the copy of the run.
        backend: Of Keras.
        caches: Whether a second process finds something that the first has left.
        reads: Whether the command reads a file of so many lines, its last argument.
        problem: Why the command cannot run.
    """

    name: str
    command: tuple[str, ...]
    backend: str | None = None
    caches: bool = False
    reads: bool = True
    problem: str | None = None


class Process(NamedTuple):
    """Seconds from start to exit, and the lines written."""

    seconds: float
    output: list[str]


@dataclass
class Measured:
    """The processes of one way and one file, one or two a round."""

    first: list[Process] = field(default_factory=list)
    second: list[Process] = field(default_factory=list)
    problem: str | None = None


def own_ways(backends: Sequence[str]) -> list[Way]:
    """The imports of Keras and `translate` on each backend, and with the engine ctranslate2."""
    imports = (sys.executable, "-c", "import keras")
    translate = (sys.executable, "-m", "keras_transformer_cli", "translate", "RUN", *SEARCH)
    engine = (*translate, "--engine", "ctranslate2")
    return [
        *(Way("import keras", imports, backend, reads=False) for backend in backends),
        *(Way("translate", translate, backend, caches=True) for backend in backends),
        Way("translate --engine ctranslate2", engine, backends[0], caches=True),
    ]


def peer_ways(run: Run, folder: Path) -> list[Way]:
    """The peers' programs, with exports of the run in `folder`, so that all translate alike."""
    model, tokenizer = open_model(run), run.tokenizer()
    if not tokenizer.joint:
        raise SystemExit(f"{run.directory} must have a joint vocabulary. Received: two of them")
    ways = []
    for name, export in PEERS.items():
        command = (sys.executable, str(BENCH / f"_cold_{name}.py"), str(folder / name))
        problem = None
        try:
            export(model, tokenizer, folder / name)
        except (ImportError, UserError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        ways.append(Way(name, command, problem=problem))
    return ways


def run_process(way: Way, file: Path | None, run: Path, cache: Path) -> Process:
    """Run to the end.

    Raises:
        RuntimeError: If the process fails.
    """
    command = [str(run) if argument == "RUN" else argument for argument in way.command]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment |= dict.fromkeys(CACHES, str(cache))
    if way.backend:
        environment["KERAS_BACKEND"] = way.backend
    start = time.perf_counter()
    done = subprocess.run(
        command + [str(file)] * (file is not None),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"exit status {done.returncode}: {last}")
    return Process(seconds, done.stdout.splitlines())


def measure_once(way: Way, file: Path | None, run: Path, measured: Measured) -> None:
    """One process, or a first and a second one, unless one has failed before."""
    if measured.problem:
        return
    with tempfile.TemporaryDirectory() as folder:
        copy, cache = Path(folder) / "run", Path(folder) / "cache"
        cache.mkdir()
        if way.caches:
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
        try:
            if way.caches:
                measured.first.append(run_process(way, file, copy, cache))
            measured.second.append(run_process(way, file, copy, cache))
        except RuntimeError as error:
            measured.problem = str(error)


def take_turns(
    ways: Sequence[Way], files: Mapping[int, Path], run: Path, rounds: int
) -> dict[tuple[Way, int | None], Measured]:
    """The processes of each way and number of lines, for which `files` has a file."""
    pairs = [(way, count) for way in ways for count in (files if way.reads else [None])]
    found = {pair: Measured(problem=pair[0].problem) for pair in pairs}
    turns = list(pairs)
    with tqdm(total=rounds * len(turns), unit="turn") as progress:
        for _ in range(rounds):
            for way, count in turns:
                progress.set_description(f"{way.name} {way.backend or ''} {count or ''}")
                measure_once(way, files.get(count), run, found[way, count])
                progress.update()
            turns.append(turns.pop(0))  # so that no way always has the first turn
    return found


def report(found: Mapping[tuple[Way, int | None], Measured]) -> list[dict]:
    """A row for each way and number of lines, from what `take_turns` returned."""
    for (_, count), measured in found.items():
        for process in [*measured.first, *measured.second]:
            if count and len(process.output) != count:
                measured.problem = f"{len(process.output)} lines for {count}"
    good = {pair: measured for pair, measured in found.items() if not measured.problem}
    of_imports = {way.backend: m for (way, count), m in good.items() if not count}
    of_peer = {count: m for (way, count), m in good.items() if way.name == "ctranslate2"}
    return [
        {
            "way": way.name,
            "backend": way.backend,
            "lines": count,
            **figures(measured, of_imports.get(way.backend), of_peer.get(count)),
        }
        for (way, count), measured in found.items()
    ]


def figures(
    measured: Measured, of_imports: Measured | None, of_peer: Measured | None
) -> dict[str, Any]:
    """The figures of a row; all None after a failure."""
    row: dict[str, Any] = dict.fromkeys([*list(FORMATS)[1:], "note"])
    if measured.problem:
        return {**row, "note": measured.problem}
    second = median_seconds(measured.second)
    row["first_s"] = round(median_seconds(measured.first), 3) if measured.first else None
    row["second_s"] = round(second, 3)
    if of_imports:
        row["times_imports"] = round(second / median_seconds(of_imports.second), 2)
    if of_peer:
        mine, theirs = (one.second[-1].output for one in (measured, of_peer))
        row["times_ctranslate2"] = round(second / median_seconds(of_peer.second), 2)
        row["same"] = sum(a == b for a, b in zip(mine, theirs, strict=True)) / len(theirs)
    return row


def median_seconds(processes: Sequence[Process]) -> float:
    return median(process.seconds for process in processes)


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All rows of the processes."""
    run = Run.open(arguments.run)
    text = run.text.files("test")[0]
    sentences = list(read_lines(text))
    if max(arguments.lines) > len(sentences):
        raise SystemExit(f"{text} has {len(sentences)} lines. Received: --lines {arguments.lines}")
    files = {count: folder / f"{count}.txt" for count in arguments.lines}
    for count, file in files.items():
        file.write_text("".join(f"{line}\n" for line in sentences[:count]), "utf-8")
    ways = [*own_ways(arguments.backends), *peer_ways(run, folder)]
    return report(take_turns(ways, files, arguments.run, arguments.rounds))


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_argument("run", type=Path, help="folder of a finished run with a joint vocabulary")
    parser.add_argument(
        "--lines", type=int, nargs="+", default=[1, 100, 1000], help="default: 1 100 1000"
    )
    parser.add_backends()
    parser.add_rounds(3)
    arguments = parser.parse()
    if min(arguments.lines) < 1:
        parser.error(f"--lines must be at least 1. Received: {min(arguments.lines)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    limit_threads()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments, Path(folder))
    show(rows, FORMATS, arguments.json)


if __name__ == "__main__":
    main()
