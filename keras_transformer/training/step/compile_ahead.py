"""Compiles the training step of JAX before the first batch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import keras

from keras_transformer._progress import Bar


class CompileAhead(keras.callbacks.Callback):
    """Compiles the training step on JAX for the shapes of all `batches`, in parallel.

    Otherwise, Keras compiles a step when a batch with new shapes comes. While this object exists,
    the step that Keras makes in `fit` finds these programs in JAX's memory. Only XLA works in
    parallel: Python traces one step at a time.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__()
        self.batches = batches

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        import jax

        model = self.model
        self.step = jax.jit(model.train_step, donate_argnums=0)  # as Keras makes it
        weights = model.trainable_variables, model.non_trainable_variables
        groups = *weights, model.optimizer.variables, model.metrics_variables
        state = tuple([variable.value for variable in group] for group in groups)
        progress = Bar("compiling", total=len(self.batches), unit="shape", leave=False)
        with progress as bar, ThreadPoolExecutor() as pool:
            lowered = (self.step.lower(state, batch) for batch in self.batches)
            programs = [pool.submit(x.compile) for x in lowered]
            for program in as_completed(programs):
                program.result()
                bar.update()
