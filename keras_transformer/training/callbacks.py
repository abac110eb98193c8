"""Callbacks that count optimizer steps, where Keras counts batches, and compile ahead of them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.compile_function import compiling
from keras_transformer._progress import Bar
from keras_transformer.errors import UserError
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution
from keras_transformer.training.step.optimizer import StepOptimizer, inner_optimizer

Logs = dict[str, Any] | None


@dataclass(eq=False)
class Steps(keras.callbacks.Callback):
    """Counts optimizer steps, seeds dropout, and reports loss, metrics and speed.

    The attribute `step` is the number of the current optimizer step, counted from 1. At the start
    of every epoch, dropout gets seeds that depend only on `seed`, the number of finished steps and
    the replica. So a resumed run has the same dropout masks.

    A report follows after `report_every` steps, and at the end of an epoch. Loss and metrics are
    means over the steps since the last report. Only a report copies them from the device. If the
    loss is infinite or NaN, raises `UserError`.

    `start_step` is the number of optimizer steps before this training. `reporters` have a method
    `report(step, values)`. The other arguments are those of `fit`.
    """

    start_step: int = 0
    accumulation_steps: int = 1
    reporters: Sequence[Any] = ()
    seed: int = 0
    tokens: Callable[[int], int] | None = None
    report_every: int = 50
    distribution: Distribution = ONE_DEVICE

    def __post_init__(self) -> None:
        super().__init__()
        self.step = self._first = self.start_step
        self.bars = [reporter for reporter in self.reporters if isinstance(reporter, Bar)]

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._first, self._begin = self.step, time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if batch == 0:  # PyTorch's DataLoader draws a random number after `on_epoch_begin`.
            self._reseed()
        if batch % self.accumulation_steps == 0:
            for bar in self.bars:
                bar.update(self.step - bar.n)
            if self.step - self._first == self.report_every:
                self._report()
                self.model.reset_metrics()
                self.on_epoch_begin(0)
            self.step += 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._report()
        for bar in self.bars:
            bar.update(self.step - bar.n)
            if bar.is_live:
                bar.set_postfix_str("validating and saving")

    def _reseed(self) -> None:
        weights = {id(variable) for variable in self.model.non_trainable_weights}
        # The states of the `keras.random.SeedGenerator` objects, in the order of the layers.
        states = [x for x in self.model.non_trainable_variables if id(x) not in weights]
        sequence = np.random.SeedSequence([self.seed, self.step])
        seeds = sequence.generate_state(len(states) + 1) >> 1
        for state, seed in zip(states, seeds[1:], strict=True):
            self.distribution.assign_seed(state, int(seed))
        if keras.config.backend() == "torch":  # Keras's dropout uses PyTorch's global generator
            import torch

            torch.manual_seed(int(seeds[0]) + self.distribution.rank)

    def _report(self) -> None:
        values = _numbers(self.model.get_metrics_result())  # waits for the device
        if not math.isfinite(values.get("loss", 0.0)):
            raise diverged("loss is", self.step)
        seconds = time.perf_counter() - self._begin
        optimizer = inner_optimizer(self.model)
        # TensorFlow converts a variable of several devices only to a tensor.
        rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
        values["learning_rate"] = float(keras.ops.convert_to_numpy(rate))
        if isinstance(optimizer, StepOptimizer):
            values["gradient_norm"] = float(keras.ops.convert_to_numpy(optimizer.gradient_norm))
        if self.tokens:
            tokens = sum(self.tokens(step) for step in range(self._first, self.step))
            values["tokens_per_second"] = tokens / seconds
        else:
            values["steps_per_second"] = (self.step - self._first) / seconds
        for reporter in self.reporters:
            reporter.report(self.step, values)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns results of metrics as floats. The names of a vector's elements end in /0, /1, ..."""
    values = {}
    for name, result in metrics.items():
        array = np.asarray(keras.ops.convert_to_numpy(result), "float64")
        for index, value in enumerate(array.flat):
            values[f"{name}/{index}" if array.ndim else name] = float(value)
    return values


def diverged(what: str, step: int) -> UserError:
    """Returns the error to raise if the loss or a weight is infinite or NaN."""
    return UserError(
        f"training has diverged: the {what} infinite or NaN at step {step:,}. Use a lower learning "
        "rate or clip the gradients. Earlier checkpoints are kept"
    )


class ProgressBar(Bar):
    """Shows a progress bar of optimizer steps with the loss, speed and remaining time."""

    def __init__(self, steps: int, start_step: int) -> None:
        super().__init__("training", total=steps, initial=start_step, unit="step", mininterval=1.0)
        self.set_postfix_str(compiling())

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        """Shows loss and speed beside the progress bar, and prints validation results above it."""
        figures = {name: x for name, x in values.items() if isinstance(x, float)}
        if any(name.startswith("validation/") for name in figures):
            found = (f"{name} {value:.4g}" for name, value in figures.items())
            self.write(f"step {step:,}: {', '.join(found)}")
        else:
            tokens = figures.get("tokens_per_second")
            speed = f", {tokens:,.0f} tokens/s" if tokens is not None else ""
            name, value = next(iter(figures.items()))  # the loss, or the model's first metric
            self.set_postfix_str(f"{name} {value:.3f}{speed}", refresh=False)


class StopAfter(keras.callbacks.Callback):
    """Ends training after `steps` optimizer steps, even in the middle of an epoch.

    If another callback stops training between two micro-batches of an optimizer step, training
    first completes this step. In the list of callbacks, `StopAfter` must come last.
    """

    async_safe = True  # otherwise, Keras would wait for the device after each batch

    def __init__(self, steps: int, counter: Steps, model: keras.Model) -> None:
        super().__init__()
        self.steps = steps
        self.counter = counter
        self.trained = model  # on JAX, `self.model` also copies the training state to the model
        self._completes = self._stops = False

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._completes = (batch + 1) % self.counter.accumulation_steps == 0
        if self._completes and (self._stops or self.counter.step == self.steps):
            self.trained.stop_training = True
        self.on_train_batch_end(batch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Postpones a stop. Keras may call it in a thread, when the next batch has begun."""
        if self.trained.stop_training and not self._completes:
            self._stops, self.trained.stop_training = True, False


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
