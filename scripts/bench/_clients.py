"""Clients that ask a server at the same time, each for a sentence at a time."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import requests


@dataclass
class Load:
    """What clients have met: outcomes, seconds of each answer, what went wrong, and how long."""

    outcomes: Counter[str] = field(default_factory=Counter)
    answers: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sentences_per_s(self) -> float:
        return len(self.answers) / self.seconds

    def milliseconds(self, *percentiles: int) -> dict[str, float]:
        """What so many per cent of the clients waited at most, such as "p50_ms"."""
        values = np.percentile(self.answers, percentiles) * 1000
        return {f"p{p}_ms": value for p, value in zip(percentiles, values, strict=True)}


def put_under_load(
    ask: Callable[[requests.Session, Any], tuple[str, str]],
    sentences: Sequence[Any],
    clients: int,
    seconds: float,
) -> Load:
    """All clients at the same time, for so many seconds.

    Args:
        ask: Asks for one of the sentences, and returns the outcome and the answer as text. A
            request without an answer has "failed".
    """
    load, lock = Load(), threading.Lock()
    begin = threading.Barrier(clients + 1)

    def client(seed: int) -> None:
        session, generator = requests.Session(), np.random.default_rng(seed)
        begin.wait()
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline:
            try:
                outcome, told = ask(session, sentences[generator.integers(len(sentences))])
            except requests.RequestException as error:
                outcome, told = "failed", str(error)
            with lock:
                load.outcomes[outcome] += 1
                load.answers.append(time.perf_counter() - started)
                if outcome in ("wrong", "failed"):
                    load.problems.append(told)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    load.seconds = time.perf_counter() - started
    return load
