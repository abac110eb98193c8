"""What the benchmarks share: arguments, workers that are timed in turn, tables and JSON files."""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
THREADS = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 2)
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": str(THREADS),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": str(THREADS),
    "TF_NUM_INTRAOP_THREADS": str(THREADS),
}


def limit_threads() -> None:
    """Keep this process and its workers on `THREADS` cores; JAX knows no other way."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


class Parser(argparse.ArgumentParser):
    """The arguments of a benchmark; all can write the rows of their table with `--json`."""

    def __init__(self, description: str, examples: str) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, epilog=examples, formatter_class=layout)
        self.add_argument("--json", type=Path, help="file to write the table's rows to")

    def add_backends(self) -> None:
        names = {"choices": BACKENDS, "default": BACKENDS}
        self.add_argument("--backends", nargs="+", **names, help="default: all three")

    def add_rounds(self, default: int) -> None:
        self.add_argument("--rounds", type=int, default=default, help=f"default: {default}")

    def parse(self) -> argparse.Namespace:
        """Parses and checks what was given on the command line."""
        arguments = self.parse_args()
        if getattr(arguments, "rounds", 1) < 1:
            self.error(f"--rounds must be at least 1. Received: --rounds {arguments.rounds}")
        path = getattr(arguments, "json", None)
        if path and not path.parent.is_dir():
            self.error(f"--json must name a file in an existing folder. Received: {path}")
        return arguments


class Worker(AbstractContextManager):
    """A child process that works on request and sleeps in between, its program serving `serve`.

    `send` and `receive` are apart so that several workers can be started at the same time.
    """

    def __init__(self, program: Path, *arguments: str, **environment: str) -> None:
        self._command = [sys.executable, str(program), *arguments]
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment},
        )

    def send(self, action: str, *arguments: Any) -> None:
        try:
            print(json.dumps([action, *arguments]), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # `receive` tells why.

    def receive(self, seconds: float | None = None) -> Any:
        """The reply, or RuntimeError if none comes within so many seconds or the worker died."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"no reply within {seconds:.0f} s")
        reply = self._process.stdout.readline()
        if not reply:
            self._errors.seek(0)
            raise RuntimeError(f"{' '.join(self._command)} died:\n{self._errors.read()[-2000:]}")
        return json.loads(reply)

    def ask(self, action: str, *arguments: Any) -> Any:
        self.send(action, *arguments)
        return self.receive()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            file.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


def serve(prepare: Callable[[], Mapping[str, Callable[..., Any]]]) -> None:
    """Answer the requests of a `Worker` until there are no more.

    Args:
        prepare: Returns what can be asked for: functions by name, of and to JSON values.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever libraries print must not mix with the replies.
    actions = prepare()
    for line in sys.stdin:
        action, *arguments = json.loads(line)
        print(json.dumps(actions[action](*arguments)), file=replies, flush=True)


def table(rows: Sequence[Mapping[str, Any]], formats: Mapping[str, str]) -> str:
    """Lay out rows with equal keys, numbers to the right.

    Args:
        rows: At least one; None leaves a cell empty.
        formats: Format specification by key, for those columns that are numbers.
    """
    lines = [list(rows[0])]
    for row in rows:
        values = ((value, formats.get(key, "")) for key, value in row.items())
        lines.append(["" if value is None else format(value, spec) for value, spec in values])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [">" if key in formats else "<" for key in rows[0]]
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(layout.format(*line).rstrip() for line in lines)


def show(rows: Sequence[Mapping[str, Any]], formats: Mapping[str, str], json: Path | None) -> None:
    """Print the table, and write it to a file if one is named."""
    print(f"\n{table(rows, formats)}")
    if json:
        write_json(json, rows)


def write_json(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a list of objects, one a line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
