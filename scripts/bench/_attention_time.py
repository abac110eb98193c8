"""Time of one training step of an attention layer beside that of all scores, against the length."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from _attention_memory import exponent, step_of
from _common import Worker


def work() -> dict[str, Callable[..., Any]]:
    """What the worker can be asked for."""
    from keras_transformer.cli.process import keep_freed_memory

    keep_freed_memory()

    def seconds(
        modules: Sequence[str], length: int, is_causal: bool, rounds: int
    ) -> list[dict[str, float]]:
        steps = {module: step_of(module, length, is_causal) for module in modules}
        for step in [*steps.values()] * 2:  # The first step compiles.
            step()
        return [
            {module: _seconds_of(step) for module, step in steps.items()} for _ in range(rounds)
        ]

    return {"seconds": seconds}


def _seconds_of(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure_time(
    worker: Worker,
    backend: str,
    modules: Sequence[str],
    lengths: Sequence[int],
    is_causal: bool,
    rounds: int,
    progress: Callable[[str], Any],
) -> list[dict[str, Any]]:
    """A row for each module. The modules take turns, each with one step in each round."""
    found = {}
    for length in lengths:
        progress(f"{backend}, {length} tokens")
        found[length] = worker.ask("seconds", modules, length, is_causal, rounds)
    return [row(module, backend, found) for module in modules]


def row(
    module: str, backend: str, found: Mapping[int, Sequence[Mapping[str, float]]]
) -> dict[str, Any]:
    """Median milliseconds by length and their exponent, and median ratios to `dense`, if any."""
    ms = {n: 1000 * median(each[module] for each in rounds) for n, rounds in found.items()}
    ratios = {
        f"ratio_{n}": round(median(each[module] / each["dense"] for each in rounds), 3)
        for n, rounds in found.items()
        if "dense" in rounds[0]
    }
    return {
        "module": module,
        "backend": backend,
        **{f"ms_{n}": round(value, 2) for n, value in ms.items()},
        "ms_exponent": exponent(list(ms), list(ms.values())),
        **ratios,
    }
