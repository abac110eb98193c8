"""Callbacks that count in optimizer steps."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
from tqdm import tqdm

from keras_transformer.data import fit_data
from keras_transformer.data.batch_plan import Batch
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.training.transformer_adam import inner_optimizer
from keras_transformer.training.validation_history import ValidationHistory


class Reporter(Protocol):
    """Whatever shows figures of training: a progress bar, an event file."""

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Show figures by name, as they are after `step` optimizer steps."""


class StepCallback(keras.callbacks.Callback):
    """Base of callbacks that count optimizer steps where Keras counts batches and epochs.

    `step` is the number of the optimizer step in progress, from 1; at the end of an epoch it is
    the number of steps made, over all epochs and over earlier processes.

    Args:
        accumulation_steps: Micro-batches per optimizer step.
    """

    def __init__(self, accumulation_steps: int = 1) -> None:
        super().__init__()
        self.accumulation_steps = accumulation_steps
        self.step = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.step = epoch * (self.params["steps"] // self.accumulation_steps)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch % self.accumulation_steps == 0:
            self.on_step_begin(self.step)
            self.step += 1

    def on_step_begin(self, steps: int) -> None:
        """Act when `steps` optimizer steps have been made, or are under way on the device."""


class Reseed(StepCallback):
    """Makes the random state of dropout a function of seed and step, at the begin of every epoch.

    So no random state needs to be kept: an epoch is the same in whichever process it runs, and
    whatever else has drawn random numbers before.

    Args:
        seed: Integer >= 0.
        accumulation_steps: Micro-batches per optimizer step.
    """

    def __init__(self, seed: int, accumulation_steps: int = 1) -> None:
        super().__init__(accumulation_steps)
        self.seed = seed

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not on_epoch_begin: PyTorch's DataLoader draws a number after it.
        if batch == 0:
            self._reseed(self.step)
        super().on_train_batch_begin(batch)

    def _reseed(self, step: int) -> None:
        generators = _seed_generator_states(self.model)
        seeds = np.random.SeedSequence([self.seed, step]).generate_state(len(generators) + 1) >> 1
        for generator, seed in zip(generators, seeds[1:], strict=True):
            generator.assign([seed, 0])
        if keras.config.backend() == "torch":  # whose dropout draws from the global generator
            import torch

            torch.manual_seed(int(seeds[0]))


def _seed_generator_states(model: Any) -> list[Any]:
    """States of the model's `keras.random.SeedGenerator`s, in the order of its layers."""
    weights = {id(variable) for variable in model.non_trainable_weights}
    return [variable for variable in model.non_trainable_variables if id(variable) not in weights]


class StopAfter(StepCallback):
    """Ends training after a number of optimizer steps, be it amid an epoch."""

    def __init__(self, steps: int, accumulation_steps: int = 1) -> None:
        super().__init__(accumulation_steps)
        self.steps = steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch)
        if self.step == self.steps and (batch + 1) % self.accumulation_steps == 0:
            self.model.stop_training = True


class StepReports(StepCallback):
    """Reports loss, metrics, learning rate, gradient norm and speed every few optimizer steps.

    Loss and metrics are means over the steps since the last report. Between reports nothing is
    fetched from the device.

    Args:
        reporters: Who is told.
        tokens: Function of an optimizer step, counted from 0: its real target tokens.
        accumulation_steps: Micro-batches per optimizer step.
        every: Optimizer steps between reports.
        metrics: Function of the model that gives the metrics, where they are more than its own.
    """

    def __init__(
        self,
        reporters: Sequence[Reporter],
        tokens: Callable[[int], int],
        accumulation_steps: int = 1,
        every: int = 50,
        metrics: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(accumulation_steps)
        self.reporters = reporters
        self.tokens = tokens
        self.every = every
        self.metrics = metrics or methodcaller("get_metrics_result")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch)
        self._begin_window(self.step)

    def on_step_begin(self, steps: int) -> None:
        if steps - self._first == self.every:
            self._report(steps, self.metrics(self.model))
            self.model.reset_metrics()
            self._begin_window(steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._report(self.step, self.metrics(self.model))

    def _begin_window(self, steps: int) -> None:
        self._first = steps
        self._begin = time.perf_counter()

    def _report(self, steps: int, metrics: Mapping[str, Any]) -> None:
        values = {name: float(value) for name, value in metrics.items()}  # waits for the device
        seconds = time.perf_counter() - self._begin
        optimizer = inner_optimizer(self.model)
        values["learning_rate"] = float(optimizer.learning_rate)
        values["gradient_norm"] = float(keras.ops.convert_to_numpy(optimizer.gradient_norm))
        tokens = sum(self.tokens(step) for step in range(self._first, steps))
        values["tokens_per_second"] = tokens / seconds
        for reporter in self.reporters:
            reporter.report(steps, values)


class ProgressBar(StepCallback):
    """Shows optimizer steps, loss, real target tokens a second and the time left.

    Args:
        steps: Optimizer steps in all.
        accumulation_steps: Micro-batches per optimizer step.
        start_step: Optimizer steps made by an earlier process.
    """

    def __init__(self, steps: int, accumulation_steps: int = 1, start_step: int = 0) -> None:
        super().__init__(accumulation_steps)
        self._bar = tqdm(
            total=steps, initial=start_step, unit="step", mininterval=1.0, dynamic_ncols=True
        )

    def on_step_begin(self, steps: int) -> None:
        self._bar.update(steps - self._bar.n)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._bar.update(self.step - self._bar.n)

    def on_train_end(self, logs: Any = None) -> None:
        self._bar.close()

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Put loss and speed behind the bar, or print what validation found above it."""
        if "tokens_per_second" in values:
            speed = f"{values['tokens_per_second']:,.0f} tokens/s"
            self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed}")
        else:
            found = (f"{name} {value:.4g}" for name, value in values.items())
            self._bar.write(f"step {step:,}: {', '.join(found)}")


class Validation(StepCallback):
    """Measures the model on held-out sentences at the end of every epoch.

    Loss, perplexity and accuracy are means per real target token, and the loss is not smoothed.
    Where the optimizer averages the weights, the averages are measured.

    Args:
        batches: What `evaluation_batches` returns.
        reporters: Who is told, under names that begin with "validation/".
        accumulation_steps: Micro-batches per optimizer step.
        further: Function of (step) that returns more figures, such as {"bleu": 30.0}.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        reporters: Sequence[Reporter],
        accumulation_steps: int = 1,
        further: Callable[[int], Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__(accumulation_steps)
        self.batches = batches
        self.reporters = reporters
        self.further = further

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with inner_optimizer(self.model).averages_as_weights():
            found = self.model.evaluate(
                fit_data(self.batches), steps=len(self.batches), verbose=0, return_dict=True
            )
            found["loss"] = math.log(found["perplexity"])
            if self.further:
                found |= self.further(self.step)
        values = {f"validation/{name}": value for name, value in found.items()}
        for reporter in self.reporters:
            reporter.report(self.step, values)


class Checkpoints(StepCallback):
    """Writes a checkpoint at the end of every epoch.

    Args:
        directory: Folder of the checkpoints.
        keep: How many of the newest remain.
        accumulation_steps: Micro-batches per optimizer step.
        history: Validation losses, which checkpoints carry on. Defaults to None.
        keep_best: How many checkpoints with the lowest losses remain besides. Defaults to 0.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int,
        accumulation_steps: int = 1,
        history: ValidationHistory | None = None,
        keep_best: int = 0,
    ) -> None:
        super().__init__(accumulation_steps)
        self.directory = directory
        self.keep = keep
        self.history = history
        self.keep_best = keep_best

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        save_checkpoint(
            self.directory, self.model, self.step, self.keep, self.history, self.keep_best
        )


class StopEarly(StepCallback):
    """Ends training when validation losses have not fallen for a number of checkpoints.

    Args:
        history: Validation losses; in processes that do not validate it stays empty.
        patience: Checkpoints without a new lowest loss.
        of_chief: Function of a bool that returns the chief's in all processes. All call it.
    """

    def __init__(
        self, history: ValidationHistory, patience: int, of_chief: Callable[[bool], bool]
    ) -> None:
        super().__init__()
        self.history = history
        self.patience = patience
        self.of_chief = of_chief

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.of_chief(self.history.is_over(self.patience)):
            self.model.stop_training = True
