#!/usr/bin/env python
"""`keras-transformer serve` with batches of requests beside one sentence at a time.

For each engine, two servers translate with the same model on the same cores, one with --max-batch
64 and one with --max-batch 1. They are loaded in turn, so that other work on the machine affects
both. Each client sends a sentence and waits for its translation. Each number is the median of the
rounds; ratio is the rate beside that of one at a time. An answer that differs from the one that the
sentence gets alone counts as different, one with another status than 200 as failed.
"""

import argparse
import os
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import requests
from _clients import put_under_load
from _common import BACKENDS, ENVIRONMENT, ROOT, Parser, show
from tqdm import tqdm

from keras_transformer.data.text_files import read_lines

sys.path.insert(0, str(ROOT / "tests"))
from support.running_server import serving  # noqa: E402

MODES = {"one at a time": 1, "batches": 64}
FORMATS = {"clients": "d", "sentences_per_s": ",.1f", "ratio": ".2f", "p50_ms": ",.0f"}
FORMATS |= {"p95_ms": ",.0f", "different": ",d", "failed": ",d", "mebibytes": ",.0f"}
EXAMPLES = """examples:
  scripts/bench/serve.py tatoeba_en_de saved_models/tatoeba_en_de/text/test.en --json serve.json
  scripts/bench/serve.py RUN test.en --engines ctranslate2 --clients 8 --seconds 600 --rounds 1
"""


def started(
    engine: str, max_batch: int, given: argparse.Namespace
) -> AbstractContextManager[tuple[Any, str]]:
    """Returns the context of a server, with its process and its address."""
    command = [sys.executable, ROOT / "keras_transformer_cli.py", "serve", given.run]
    command += ["--engine", engine, "--max-batch", max_batch]
    variables = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": given.backend}
    environment = {**os.environ, **ENVIRONMENT, **variables}
    is_bound = given.cores and hasattr(os, "sched_setaffinity")
    bind = (lambda: os.sched_setaffinity(0, given.cores)) if is_bound else None
    return serving(*command, env=environment, preexec_fn=bind)


def ask(session: requests.Session, url: str, sentence: str, target: str) -> str | None:
    """Returns the translation, or None for another status than 200."""
    body = {"q": sentence, "source": "auto", "target": target}
    answer = session.post(f"{url}/translate", json=body, timeout=120)
    return answer.json()["translatedText"] if answer.ok else None


def load(
    url: str, expected: dict[str, str | None], target: str, clients: int, seconds: float
) -> dict[str, Any]:
    """All clients at the same time, for so many seconds."""

    def ask_for(session: requests.Session, sentence: str) -> tuple[str, str]:
        found = ask(session, url, sentence, target)
        if found is None:
            return "failed", sentence
        return "same" if found == expected[sentence] else "different", sentence

    found = put_under_load(ask_for, [*expected], clients, seconds)
    counts = {name: found.outcomes[name] for name in ("different", "failed")}
    return {"sentences_per_s": found.sentences_per_s, **found.milliseconds(50, 95), **counts}


def mebibytes(process: Any) -> float:
    """Returns the memory of a process."""
    status = Path(f"/proc/{process.pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024


def measure(engine: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row for each number of clients and mode."""
    sentences = [x for x in read_lines(given.text) if x.strip()][: given.sentences]
    with ExitStack() as stack:
        servers = {
            mode: stack.enter_context(started(engine, size, given)) for mode, size in MODES.items()
        }
        _, address = servers["one at a time"]
        settings = requests.get(f"{address}/frontend/settings").json()
        target = settings["language"]["target"]["code"]
        expected = {x: ask(requests.Session(), address, x, target) for x in sentences}
        for clients in given.clients:
            what = expected, target, clients, given.seconds
            rounds = [
                {mode: load(url, *what) for mode, (_, url) in servers.items()}
                for _ in tqdm(range(given.rounds), desc=f"{engine}, {clients} clients")
            ]
            for mode, (process, _) in servers.items():
                of_mode = [x[mode] for x in rounds]
                row = {name: statistics.median(x[name] for x in of_mode) for name in of_mode[0]}
                row |= {name: sum(x[name] for x in of_mode) for name in ("different", "failed")}
                rates = (x[mode]["sentences_per_s"] for x in rounds)
                others = (x["one at a time"]["sentences_per_s"] for x in rounds)
                ratio = statistics.median(x / y for x, y in zip(rates, others, strict=True))
                where = {"engine": engine, "mode": mode, "clients": clients, "ratio": ratio}
                yield where | row | {"mebibytes": mebibytes(process)}


def main() -> int:
    parser = Parser(__doc__, EXAMPLES)
    parser.add_rounds(5)
    parser.add_argument("run", help="a run folder, or the name of a run in the package")
    parser.add_argument("text", type=Path, help="sentences, one a line, plain or .gz")
    engines = {"choices": ["ctranslate2", "keras"], "default": ["ctranslate2", "keras"]}
    parser.add_argument("--engines", nargs="+", **engines, help="default: both")
    parser.add_argument("--backend", choices=BACKENDS, default="torch", help="default: torch")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load; default: 20")
    parser.add_argument("--sentences", type=int, default=200, help="of the text; default: 200")
    parser.add_argument("--cores", type=int, nargs="+", help="of the servers; default: all")
    given = parser.parse()
    rows = [row for engine in given.engines for row in measure(engine, given)]
    show(rows, FORMATS, given.json)
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
