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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import requests
from _common import BACKENDS, ENVIRONMENT, ROOT, Parser, show
from tqdm import tqdm

from keras_transformer.data.text_files import read_lines

MODES = {"one at a time": 1, "batches": 64}
FORMATS = {"clients": "d", "sentences_per_s": ",.1f", "ratio": ".2f", "p50_ms": ",.0f"}
FORMATS |= {"p95_ms": ",.0f", "different": ",d", "failed": ",d", "mebibytes": ",.0f"}
EXAMPLES = """examples:
  scripts/bench/serve.py tatoeba_en_de saved_models/tatoeba_en_de/text/test.en --json serve.json
  scripts/bench/serve.py RUN test.en --engines ctranslate2 --clients 8 --seconds 600 --rounds 1
"""


@contextmanager
def serving(run: str, engine: str, max_batch: int, given: argparse.Namespace) -> Iterator[Any]:
    """Yields the address and the process of a server."""
    command = [sys.executable, ROOT / "keras_transformer_cli.py", "serve", run, "--port", "0"]
    command += ["--engine", engine, "--max-batch", str(max_batch)]
    variables = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": given.backend}
    environment = {**os.environ, **ENVIRONMENT, **variables}
    with tempfile.NamedTemporaryFile("r") as log:
        with open(log.name, "w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        if given.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, given.cores)
        try:
            while not (found := re.search(r"running on (\S+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(Path(log.name).read_text()[-2000:])
                time.sleep(0.2)
            yield found[1], process
        finally:
            process.terminate()
            process.wait()


def ask(session: requests.Session, url: str, sentence: str, target: str) -> str | None:
    """Returns the translation, or None for another status than 200."""
    body = {"q": sentence, "source": "auto", "target": target}
    answer = session.post(f"{url}/translate", json=body, timeout=120)
    return answer.json()["translatedText"] if answer.ok else None


def load(
    url: str, expected: dict[str, str | None], target: str, clients: int, seconds: float
) -> dict[str, Any]:
    """All clients at the same time, for so many seconds."""
    sentences, lock = [*expected], threading.Lock()
    times, different, failed = [], 0, 0

    def client(seed: int) -> None:
        nonlocal different, failed
        session, generator = requests.Session(), np.random.default_rng(seed)
        while (begin := time.perf_counter()) < deadline:
            sentence = sentences[generator.integers(len(sentences))]
            found = ask(session, url, sentence, target)
            with lock:
                times.append(time.perf_counter() - begin)
                failed += found is None
                different += found not in (None, expected[sentence])

    begin = time.perf_counter()
    deadline = begin + seconds
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p95 = np.percentile(times, [50, 95]) * 1000
    rate = len(times) / (time.perf_counter() - begin)
    numbers = {"sentences_per_s": rate, "p50_ms": p50, "p95_ms": p95}
    return numbers | {"different": different, "failed": failed}


def mebibytes(process: Any) -> float:
    """Returns the memory of a process."""
    status = Path(f"/proc/{process.pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024


def measure(engine: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row for each number of clients and mode."""
    sentences = [x for x in read_lines(given.text) if x.strip()][: given.sentences]
    with ExitStack() as stack:
        servers = {
            mode: stack.enter_context(serving(given.run, engine, size, given))
            for mode, size in MODES.items()
        }
        address, _ = servers["one at a time"]
        settings = requests.get(f"{address}/frontend/settings").json()
        target = settings["language"]["target"]["code"]
        expected = {x: ask(requests.Session(), address, x, target) for x in sentences}
        for clients in given.clients:
            what = expected, target, clients, given.seconds
            rounds = [
                {mode: load(url, *what) for mode, (url, _) in servers.items()}
                for _ in tqdm(range(given.rounds), desc=f"{engine}, {clients} clients")
            ]
            for mode, (_, process) in servers.items():
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
