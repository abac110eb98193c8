"""How many tokens a training step can hold in memory.

Not a part of `training`: this process must not load Keras, whose memory would count.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import UserError
from keras_transformer.recipe import Recipe

FIRST_TRY = 1_024
_MEBIBYTE = 2**20
# What the engines and the system say of a lack of memory.
_OUT_OF_MEMORY = (
    "out of memory",
    "resource_exhausted",
    "resourceexhausted",
    "bad_alloc",
    "memoryerror",
    "can't allocate memory",
    "failed to allocate",
)


class Try(NamedTuple):
    """What a training step with some `tokens_per_batch` takes; no figures if it did not fit.

    Attributes:
        tokens: `training.tokens_per_batch`.
        shape: Sizes B, S and T of the batch.
        mebibytes: Peak memory of the process, or, on a GPU, of the device.
        seconds: Time of an optimizer step.
        tokens_per_s: Target tokens a second.
    """

    tokens: int
    shape: tuple[int, int, int]
    mebibytes: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None

    @property
    def fits(self) -> bool:
        return self.mebibytes is not None


def find_token_budget(
    recipe: Recipe, memory: float | None = None, report: Callable[[Try], Any] = lambda tried: None
) -> Try:
    """Find the largest `training.tokens_per_batch` whose worst batch fits into memory.

    Every try is an optimizer step in a process of its own. The number is doubled until a step does
    not fit, and then found to 10 % by bisection. No text is needed: ids are random, and sentences
    the longest that `data.max_length` allows, sources twice as long as targets, which is the most
    that `BatchPlan` puts into a batch.

    Args:
        recipe: What would be trained; on one device, if on several.
        memory: MiB for the whole process on a CPU. None: what the machine has available. On a GPU
            the device's own memory is the limit.
        report: Gets every try.

    Raises:
        UserError: If not even one sentence fits.
    """
    limit = memory or available_mebibytes()
    tries: dict[int, Try] = {}

    def fits(tokens: int) -> bool:
        tries[tokens] = measure(recipe, tokens, limit)
        report(tries[tokens])
        return tries[tokens].fits

    found = largest_that_fits(fits, smallest=longest_lengths(recipe)[1])
    if found is None:
        raise UserError(
            f"not even one sentence of data.max_length={recipe.data.max_length} fits into "
            f"{limit:,.0f} MiB: try training.gradient_checkpointing=true, "
            "a smaller data.max_length or a smaller model"
        )
    return tries[found]


def largest_that_fits(fits: Callable[[int], bool], smallest: int) -> int | None:
    """Doubles a number until it does not fit, and closes in on the largest that does, to 10 %.

    Args:
        fits: Whether a number fits; if one does, so do all smaller ones.
        smallest: The least number to try, at least 1.
    """
    tokens = max(FIRST_TRY, smallest)
    if fits(tokens):
        good = tokens
        while fits(2 * good):
            good *= 2
        bad = 2 * good
    elif tokens > smallest and fits(smallest):
        good, bad = smallest, tokens
    else:
        return None
    while bad > 1.1 * good and bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def longest_lengths(recipe: Recipe) -> tuple[int, int]:
    """Source and target length of the worst batch, eos included."""
    multiple = recipe.training.length_multiple
    source = -(-(recipe.data.max_length + 1) // multiple) * multiple
    return source, -(-source // (2 * multiple)) * multiple


def worst_shape(recipe: Recipe, tokens: int) -> tuple[int, int, int]:
    """Sizes B, S and T of the batch that takes most memory."""
    source, target = longest_lengths(recipe)
    rows = tokens // target
    return (rows - rows % 8 if rows > 8 else rows), source, target


def available_mebibytes() -> float:
    """Memory that this machine, or the container that this process is in, has left."""
    figures = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        (line,) = (x for x in meminfo.read_text().splitlines() if x.startswith("MemAvailable"))
        figures.append(int(line.split()[1]) * 1024)
    else:
        figures.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        figures.append(int(most) - int((group / "memory.current").read_text()))
    return min(figures) / _MEBIBYTE


def measure(recipe: Recipe, tokens: int, limit: float) -> Try:
    """Make an optimizer step in a process of its own, which dies if it needs too much.

    Args:
        recipe: What would be trained.
        tokens: `training.tokens_per_batch`.
        limit: MiB that the process may have on a CPU.

    Raises:
        RuntimeError: If it died for another reason than memory.
    """
    tried = Try(tokens, worst_shape(recipe, tokens))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(tokens)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            text=True,
        )
        assert child.stdin
        with child.stdin:
            child.stdin.write(recipe.model_dump_json())
        _watch(child, limit)
        output.seek(0)
        errors.seek(0)
        lines, message = output.read().splitlines(), errors.read()
    if child.returncode == 0:
        figures = json.loads(lines[-1])
        is_within = figures.pop("on_gpu") or figures["mebibytes"] <= limit
        return tried._replace(**figures) if is_within else tried
    died_of_memory = any(words in message.lower() for words in _OUT_OF_MEMORY)
    if child.returncode == -signal.SIGKILL or died_of_memory:
        return tried
    raise RuntimeError(f"a step of {tokens} tokens failed:\n{message[-2000:]}")


def _watch(child: subprocess.Popen, limit: float) -> None:
    """Wait for a process, and kill it when it has more memory than it may."""
    while child.poll() is None:
        if _resident_mebibytes(child.pid) > limit:
            child.kill()
        time.sleep(0.05)


def _resident_mebibytes(process: int) -> float:
    """0 where the system does not say."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * resource.getpagesize() / _MEBIBYTE


# --- In the process of a try ---------------------------------------------------------------------


class _Vocabularies(NamedTuple):
    """What a model needs to know of a tokenizer."""

    source_vocabulary_size: int
    target_vocabulary_size: int
    joint: bool
    pad_id: int = 0


def _step(recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Make an optimizer step on random sentences; returns what it takes."""
    import numpy as np

    from keras_transformer.training import keep_freed_memory
    from keras_transformer.training.train import new_trainer

    keep_freed_memory()
    size = recipe.tokenizer.vocabulary_size
    vocabularies: Any = _Vocabularies(size, size, recipe.tokenizer.joint)
    trainer = new_trainer(recipe, vocabularies)
    rows, source, target = worst_shape(recipe, tokens)
    rng = np.random.default_rng(recipe.seed)
    source_ids, target_ids = (
        rng.integers(4, size, (rows, length), "int32") for length in (source, target)
    )
    weights = np.full((rows, target), 1 / (rows * target), "float32")
    micro_batches = recipe.training.accumulation_steps
    for _ in range(max(2, micro_batches)):  # the first one compiles
        begin = time.perf_counter()
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        trainer.train_on_batch(inputs, target_ids, weights)
        seconds = time.perf_counter() - begin
    peak = _peak_of_gpu()
    on_gpu = peak is not None
    mebibytes = (peak if peak is not None else _peak_of_process()) / _MEBIBYTE
    return {
        "mebibytes": mebibytes,
        "seconds": seconds * micro_batches,
        "tokens_per_s": rows * target / seconds,
        "on_gpu": on_gpu,
    }


def _peak_of_process() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _peak_of_gpu() -> int | None:
    """Bytes, as the engine counts them; None on a CPU."""
    import keras

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
    print(json.dumps(_step(Recipe.model_validate_json(sys.stdin.read()), int(sys.argv[1]))))
