"""Compiles the training step of JAX before the first batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import keras


def compile_ahead(
    model: keras.Model, batches: Sequence[Any], advance: Callable[[], object]
) -> Callable[..., Any]:
    """Compiles the training step of a Keras model on JAX for each batch's shapes, in parallel.

    Otherwise, Keras compiles a step when a batch with new shapes comes. While the result of this
    function exists, the step that Keras makes in `fit` finds these programs in JAX's memory. Only
    XLA works in parallel: Python traces one step at a time. `advance` is called after each program.
    """
    import jax

    step = jax.jit(model.train_step, donate_argnums=0)  # as Keras makes it
    weights = model.trainable_variables, model.non_trainable_variables
    groups = *weights, model.optimizer.variables, model.metrics_variables
    state = tuple([variable.value for variable in group] for group in groups)
    with ThreadPoolExecutor() as pool:
        programs = [pool.submit(step.lower(state, batch).compile) for batch in batches]
        for program in as_completed(programs):
            program.result()
            advance()
    return step
