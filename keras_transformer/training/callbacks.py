"""Callbacks that count optimizer steps."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer._progress import Bar, compiling
from keras_transformer.errors import UserError
from keras_transformer.training.distribution import ONE_DEVICE, Distribution
from keras_transformer.training.optimizer import inner_optimizer


class StepCallback(keras.callbacks.Callback):
    """Base class of callbacks that count optimizer steps. Keras counts only batches and epochs.

    The attribute `step` is the number of the current optimizer step, counted from 1. At the end of
    an epoch, `step` is the number of finished steps. `start_step` is the number of steps before
    this training, and `accumulation_steps` that of the micro-batches per optimizer step.
    """

    def __init__(self, start_step: int = 0, accumulation_steps: int = 1) -> None:
        super().__init__()
        self.step = start_step
        self.accumulation_steps = accumulation_steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch % self.accumulation_steps == 0:
            self.on_step_begin(self.step)
            self.step += 1

    def on_step_begin(self, steps: int) -> None:
        """Runs before each optimizer step. `steps` is the number of finished steps."""


class Reseed(StepCallback):
    """Seeds dropout at the start of every epoch, so that a resumed run has the same dropout masks.

    The seeds depend only on `seed`, the number of finished steps and the replica.
    """

    def __init__(self, seed: int, distribution: Distribution = ONE_DEVICE, **counting: int) -> None:
        super().__init__(**counting)
        self.seed = seed
        self.distribution = distribution

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not in `on_epoch_begin`: PyTorch's DataLoader draws a random number after that call.
        if batch == 0:
            self._reseed()
        super().on_train_batch_begin(batch)

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


class StepReports(StepCallback):
    """Reports loss, metrics, learning rate, gradient norm and speed at regular intervals.

    A report follows after `every` optimizer steps, and at the end of an epoch. Loss and metrics are
    means over the steps since the last report. Only a report copies them from the device. If the
    loss is infinite or NaN, raises `UserError`. `reporters` have a method `report(step, values)`.
    """

    def __init__(
        self,
        reporters: Sequence[Any],
        tokens: Callable[[int], int] | None = None,
        every: int = 50,
        distribution: Distribution = ONE_DEVICE,
        **counting: int,
    ) -> None:
        super().__init__(**counting)
        self.reporters = reporters
        self.tokens = tokens
        self.every = every
        self.distribution = distribution

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin_window(self.step)

    def on_step_begin(self, steps: int) -> None:
        if steps - self._first == self.every:
            self._report(steps)
            self.model.reset_metrics()
            self._begin_window(steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._report(self.step)

    def _begin_window(self, steps: int) -> None:
        self._first, self._begin = steps, time.perf_counter()

    def _report(self, steps: int) -> None:
        values = _numbers(self.distribution.metrics(self.model))  # waits for the device
        if not math.isfinite(values.get("loss", 0.0)):
            raise diverged("loss is", steps)
        seconds = time.perf_counter() - self._begin
        optimizer = inner_optimizer(self.model)
        values["learning_rate"] = float(optimizer.learning_rate)
        if hasattr(optimizer, "gradient_norm"):
            values["gradient_norm"] = float(keras.ops.convert_to_numpy(optimizer.gradient_norm))
        if self.tokens:
            tokens = sum(self.tokens(step) for step in range(self._first, steps))
            values["tokens_per_second"] = tokens / seconds
        else:
            values["steps_per_second"] = (steps - self._first) / seconds
        for reporter in self.reporters:
            reporter.report(steps, values)


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


class ProgressBar(StepCallback):
    """Shows a progress bar of `steps` optimizer steps with the loss, speed and remaining time."""

    def __init__(self, steps: int, **counting: int) -> None:
        super().__init__(**counting)
        settings: Any = {"total": steps, "initial": self.step, "unit": "step", "mininterval": 1.0}
        self._bar = Bar("training", compiling(), **settings)
        self.close = self._bar.close

    def on_step_begin(self, steps: int) -> None:
        self._bar.update(steps - self._bar.n)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.on_step_begin(self.step)
        if self._bar.is_live:
            self._bar.set_postfix_str("validating and saving")

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        """Shows loss and speed beside the progress bar, and prints validation results above it."""
        figures = {name: x for name, x in values.items() if isinstance(x, float)}
        if any(name.startswith("validation/") for name in figures):
            found = (f"{name} {value:.4g}" for name, value in figures.items())
            self._bar.write(f"step {step:,}: {', '.join(found)}")
        else:
            tokens = figures.get("tokens_per_second")
            speed = f", {tokens:,.0f} tokens/s" if tokens is not None else ""
            name, value = next(iter(figures.items()))  # the loss, or the model's first metric
            self._bar.set_postfix_str(f"{name} {value:.3f}{speed}", refresh=False)


class StopAfter(StepCallback):
    """Ends training after `steps` optimizer steps, even in the middle of an epoch.

    If another callback stops training between two micro-batches of an optimizer step, training
    first completes this step. In the list of callbacks, `StopAfter` must come last.
    """

    async_safe = True  # otherwise, Keras would wait for the device after each batch

    def __init__(self, steps: int, **counting: int) -> None:
        super().__init__(**counting)
        self.steps = steps
        self._completes = self._stops = False

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._trained = model  # on JAX, `self.model` also copies the training state to the model

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch)
        self._completes = (batch + 1) % self.accumulation_steps == 0
        if self._completes and (self._stops or self.step == self.steps):
            self._trained.stop_training = True
        self.on_train_batch_end(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Postpones a stop. Keras may call it in a thread, when the next batch has begun."""
        if self._trained.stop_training and not self._completes:
            self._stops, self._trained.stop_training = True, False
