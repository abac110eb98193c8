"""Measures memory and time of an optimizer step, in a process of its own for `token_budget`.

`python -m keras_transformer.training.budget_step TOKENS [PROGRAM]` reads a recipe in JSON from
standard input and writes JSON. PROGRAM registers the recipe's architecture (see `program_of`).
"""

import json
import resource
import sys
import time
from typing import Any

import keras
import numpy as np

from keras_transformer.models.seq2seq import run_program
from keras_transformer.recipe.settings import Recipe
from keras_transformer.training.token_budget import MEBIBYTE, worst_shape
from keras_transformer.training.train_run import new_trainer


def step(recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Runs optimizer steps on random sentences. Returns the memory and time of a step."""
    size = recipe.tokenizer.vocabulary_size
    trainer = new_trainer(recipe)
    rows, source, target = worst_shape(recipe, tokens)
    rng = np.random.default_rng(recipe.seed)
    source_ids, target_ids = (
        rng.integers(4, size, (rows, length), "int32") for length in (source, target)
    )
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
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
        "mebibytes": (of_process if peak is None else peak) / MEBIBYTE,
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
    run_program(*sys.argv[2:])
    print(json.dumps(step(Recipe.model_validate_json(sys.stdin.read()), int(sys.argv[1]))))
