"""Searches for the largest number of tokens per batch that fits into memory.

`python -m keras_transformer.training.run.token_budget RECIPE TOKENS [PROGRAM]` runs optimizer steps
of a recipe in JSON, and writes their memory and time as JSON. PROGRAM registers the recipe's
architecture (see `program_of`).
"""

import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer._backend import child_process
from keras_transformer.architectures import program_of, run_program
from keras_transformer.data.batch_plan import BatchShape, batch_shape
from keras_transformer.errors import UserError, is_out_of_memory
from keras_transformer.recipe.settings import Recipe

_FIRST_TRY = 1_024
_MEBIBYTE = 2**20


class Try(NamedTuple):
    """Memory and time of a step with `tokens` per batch.

    The peak memory is that of the process or, on a GPU, of the device. The seconds are those of an
    optimizer step, and the tokens per second target tokens. All are None if it did not fit.
    """

    tokens: int
    shape: BatchShape
    mebibytes: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None


def find_token_budget(recipe: Recipe, limit: float, report: Callable[[Try], Any]) -> Try:
    """Finds the largest `training.tokens_per_batch` that fits into memory, to within 10 %.

    Tests each value in a new process, which runs training steps on random token ids, on one device.
    The batch has sources of `data.max_length` tokens and targets of half this length. With the same
    `tokens_per_batch`, no other batch of `BatchPlan` needs more memory. `limit` is that of the main
    memory of the process in MiB; on a GPU, the step must also fit into the memory of the device.
    Calls `report` with every `Try`. Raises `UserError` if a batch of one sentence does not fit.
    """
    tries: dict[int, Try] = {}

    def fits(tokens: int) -> bool:
        tries[tokens] = measure(recipe, tokens, limit)
        report(tries[tokens])
        return tries[tokens].mebibytes is not None

    found = largest_that_fits(fits, smallest=recipe.longest_lengths[1])
    if found is None:
        raise UserError(
            f"a single sentence of data.max_length={recipe.data.max_length} does not fit into "
            f"{limit:,.0f} MiB: try training.gradient_checkpointing=true, "
            "a smaller data.max_length or a smaller model"
        )
    return tries[found]


def largest_that_fits(fits: Callable[[int], bool], smallest: int) -> int | None:
    """Returns a number within 10 % of the largest that fits, or None if the smallest does not.

    Doubles the number until it does not fit, then bisects.
    """
    good, bad, tokens = 0, math.inf, max(_FIRST_TRY, smallest)
    while bad > max(1.1 * good, good + 1, smallest):
        good, bad = (tokens, bad) if fits(tokens) else (good, tokens)
        tokens = 2 * good if bad > 2 * good else int(good + bad) // 2
        tokens = max(tokens, smallest)
    return good or None


def available_mebibytes() -> float:
    """Returns the available memory in MiB of the machine, or of its container if that is less."""
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.is_file():
        (line,) = (x for x in meminfo.read_text().splitlines() if x.startswith("MemAvailable"))
        free = int(line.split()[1]) * 1024
    else:
        # Not on Linux: all memory counts as available.
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = group / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int((group / "memory.current").read_text()))
    return free / _MEBIBYTE


def measure(recipe: Recipe, tokens: int, limit: float) -> Try:
    """Runs training steps in a new process. Kills the process if it uses more than `limit` MiB."""
    tried = Try(tokens, batch_shape(tokens, *recipe.longest_lengths))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        words = [recipe.model_dump_json(), str(tokens), *program_of(recipe.model.architecture)]
        command = [sys.executable, "-m", __spec__.name, *words]
        with child_process(command, stdout=output, stderr=errors) as child:
            while child.poll() is None:
                with suppress(OSError, IndexError):  # not on Linux, or the process has just ended
                    pages = Path(f"/proc/{child.pid}/statm").read_text().split()[1]
                    if int(pages) * resource.getpagesize() > limit * _MEBIBYTE:
                        child.kill()
                time.sleep(0.05)
        output.seek(0)
        errors.seek(0)
        shown, message = output.read(), errors.read()
    if child.returncode == 0:
        figures = json.loads(shown.splitlines()[-1])
        is_within = figures.pop("on_gpu") or figures["mebibytes"] <= limit
        return tried._replace(**figures) if is_within else tried
    if child.returncode == -signal.SIGKILL or is_out_of_memory(message):
        return tried
    raise RuntimeError(f"a step of {tokens} tokens failed:\n{message[-2000:]}")


def step(recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Runs optimizer steps on random sentences. Returns the memory and time of a step."""
    from keras_transformer.training.run.prepare import new_trainer

    trainer = new_trainer(recipe)
    rows, source, target = batch_shape(tokens, *recipe.longest_lengths)
    rng, size = np.random.default_rng(recipe.seed), recipe.tokenizer.vocabulary_size
    target_ids = rng.integers(4, size, (rows, target), "int32")
    source_ids = rng.integers(4, size, (rows, source), "int32")
    inputs = {"source_ids": source_ids, "target_ids": target_ids} if source else target_ids
    weights = np.full((rows, target), 1 / (rows * target), "float32")
    micro_batches = recipe.training.accumulation_steps
    # The first step compiles. On a GPU, PyTorch records the second one as a CUDA graph.
    for _ in range(max(2 if _peak_of_gpu() is None else 3, micro_batches)):
        begin = time.perf_counter()
        trainer.train_on_batch(inputs, target_ids, weights)
        seconds = time.perf_counter() - begin
    peak = _peak_of_gpu()
    unit = 1 if sys.platform == "darwin" else 1024
    of_process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {
        "mebibytes": (of_process if peak is None else peak) / _MEBIBYTE,
        "seconds": seconds * micro_batches,
        "tokens_per_s": rows * target / seconds,
        "on_gpu": peak is not None,
    }


def _peak_of_gpu() -> int | None:
    """Returns the peak memory of the GPU in bytes, or None on a CPU."""
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        statistics = jax.local_devices()[0].memory_stats()
        return statistics["peak_bytes_in_use"] if statistics else None
    if backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


if __name__ == "__main__":
    given, number, *program = sys.argv[1:]
    run_program(*program)
    print(json.dumps(step(Recipe.model_validate_json(given), int(number))))
