"""Searches for the largest number of tokens per batch that fits into memory."""

import json
import math
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

from keras_transformer._child_process import child_process
from keras_transformer.errors import UserError, is_out_of_memory
from keras_transformer.models.seq2seq import program_of
from keras_transformer.recipe.settings import Recipe

FIRST_TRY = 1_024
# The module that each new process runs.
_STEP = "keras_transformer.training.budget_step"
MEBIBYTE = 2**20


class Try(NamedTuple):
    """Memory and time of a training step with a tested number of tokens per batch.

    If the step did not fit into memory, `mebibytes`, `seconds` and `tokens_per_s` are None.

    Attributes:
        tokens: The tested value of `training.tokens_per_batch`.
        shape: Number of sentence pairs, source length and target length of the batch.
        mebibytes: Peak memory in MiB. On a CPU, it is the memory of the process. On a GPU, it is
            the memory of the device.
        seconds: Duration of an optimizer step in seconds.
        tokens_per_s: Target tokens per second.
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
    """Finds the largest `training.tokens_per_batch` that fits into memory, to within 10 %.

    Tests each value in a new process, which runs training steps. No text is needed, because the
    token ids are random. The tested batch has sources of `data.max_length` tokens and targets of
    half this length. With the same `tokens_per_batch`, no other batch of `BatchPlan` needs more
    memory.

    Args:
        recipe: The recipe. If the recipe uses several devices, the result is for one device.
        memory: Limit in MiB for the main memory of the process. Defaults to None, which means the
            available memory. On a GPU, the step must also fit into the memory of the device.
        report: Function that is called with every `Try`.

    Raises:
        UserError: If a batch of one sentence pair does not fit.
        ValueError: If `memory` is not a number above 0.
    """
    if memory is not None and not 0 < memory < math.inf:
        raise ValueError(f"`memory` must be a number above 0. Received: memory={memory}")
    limit = available_mebibytes() if memory is None else memory
    tries: dict[int, Try] = {}

    def fits(tokens: int) -> bool:
        tries[tokens] = measure(recipe, tokens, limit)
        report(tries[tokens])
        return tries[tokens].fits

    found = largest_that_fits(fits, smallest=longest_lengths(recipe)[1])
    if found is None:
        raise UserError(
            f"a single sentence of data.max_length={recipe.data.max_length} does not fit into "
            f"{limit:,.0f} MiB: try training.gradient_checkpointing=true, "
            "a smaller data.max_length or a smaller model"
        )
    return tries[found]


def largest_that_fits(fits: Callable[[int], bool], smallest: int) -> int | None:
    """Returns a number within 10 % of the largest number for which `fits` returns True.

    Returns None if `fits(smallest)` is False. Doubles the number until `fits` returns False, then
    bisects. Assumes that if a number fits, all smaller numbers also fit.
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
    """Returns the source and target length of the batch that needs most memory.

    Both lengths include eos and padding.
    """
    multiple = recipe.training.length_multiple
    source = -(-(recipe.data.max_length + 1) // multiple) * multiple
    return source, -(-source // (2 * multiple)) * multiple


def worst_shape(recipe: Recipe, tokens: int) -> tuple[int, int, int]:
    """Returns batch size, source length and target length of the batch that needs most memory."""
    source, target = longest_lengths(recipe)
    rows = tokens // target
    return (rows - rows % 8 if rows > 8 else rows), source, target


def available_mebibytes() -> float:
    """Returns the available memory in MiB of the machine, or of its container if that is less.

    Without `/proc/meminfo`, the machine's total memory counts as available.
    """
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.is_file():
        (line,) = (x for x in meminfo.read_text().splitlines() if x.startswith("MemAvailable"))
        free = int(line.split()[1]) * 1024
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = group / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int((group / "memory.current").read_text()))
    return free / MEBIBYTE


def measure(recipe: Recipe, tokens: int, limit: float) -> Try:
    """Runs training steps in a new process. Kills the process if it uses more than `limit` MiB.

    Raises:
        RuntimeError: If the process fails for a reason other than memory.
    """
    tried = Try(tokens, worst_shape(recipe, tokens))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        program = program_of(recipe.model.architecture)
        words = [sys.executable, "-m", _STEP, str(tokens), *program]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": output, "stderr": errors}
        with child_process(words, text=True, **pipes) as child:
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
    if child.returncode == -signal.SIGKILL or is_out_of_memory(message):
        return tried
    raise RuntimeError(f"a step of {tokens} tokens failed:\n{message[-2000:]}")


def _watch(child: subprocess.Popen, limit: float) -> None:
    """Waits until a process ends, and kills it if it uses more than `limit` MiB."""
    while child.poll() is None:
        if _resident_mebibytes(child.pid) > limit:
            child.kill()
        time.sleep(0.05)


def _resident_mebibytes(process: int) -> float:
    """Returns the memory of a process, or 0 if the system does not report it."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * resource.getpagesize() / MEBIBYTE
