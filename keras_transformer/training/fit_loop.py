"""The training loop for any Keras model and any stream of batches."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend import end_iteration, fit_data
from keras_transformer._backend.compile_function import use_compilation_cache
from keras_transformer.errors import UserError, check_sizes
from keras_transformer.layers.base import check_lora_is_kept
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    checkpoint_folders,
    checkpoint_step,
    load_history,
)
from keras_transformer.runs.run import training_lock
from keras_transformer.training.callbacks import (
    AtCheckpoint,
    ProgressBar,
    Reseed,
    StepReports,
    StopAfter,
    diverged,
)
from keras_transformer.training.checkpoint import (
    newest_checkpoint,
    remove_unfinished,
    restore,
    save_checkpoint,
)
from keras_transformer.training.distribution.distribution import Action, Distribution
from keras_transformer.training.optimizer import (
    copy_averages,
    ema_as_weights,
    inner_optimizer,
    start_optimizer,
)
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.tensorboard import TensorBoardWriter

Measure = Callable[[Any, int], Mapping[str, Any]]


def fit(
    model: Any,
    batches: Callable[[int], Iterable[Any]],
    directory: str | Path,
    *,
    steps: int,
    checkpoint_every: int = 1_000,
    keep_checkpoints: int = 5,
    keep_best: int = 0,
    validation: Sequence[Any] | Measure | None = None,
    patience: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    seed: int = 0,
    resume: bool = True,
    report_every: int = 50,
    progress: bool = True,
    tensorboard: bool = True,
    hyperparameters: Mapping[str, bool | float | str] | None = None,
    tokens: Callable[[int], int] | None = None,
    distribution: Distribution | None = None,
) -> ValidationHistory:
    """Trains a compiled model for `steps` optimizer steps, and can resume after a stop or crash.

    Writes checkpoints and TensorBoard logs to `directory`. `model.save` writes each checkpoint,
    with the optimizer state, for example to `checkpoints/step-00001000/model.keras`. The logs are
    in `logs/`.

    After a stop or crash, call `fit` again with the same arguments. Then `fit` loads the newest
    checkpoint into `model`. On the same machine and backend, the final weights are bit-identical to
    those of an uninterrupted training. The optimizer's state also comes from the checkpoint. This
    includes a constant learning rate, but not a learning-rate schedule. If the optimizer has
    `use_ema`, `model` has the EMA weights at the end.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    fit(model, array_batches(x, y, batch_size=32), "runs/mine", steps=1_000, checkpoint_every=100)
    ```

    Args:
        model: A compiled and built Keras model. If the model's optimizer accumulates gradients, an
            optimizer step consists of `gradient_accumulation_steps` micro-batches.
        batches: Function that takes the number of batches to skip, and returns an endless iterable
            of the following batches. With gradient accumulation, these are micro-batches. A batch
            is `(x, y)` or `(x, y, sample_weight)`. Each element is a NumPy array or a nested
            structure of arrays. `array_batches` makes this function from arrays.
        directory: Folder of checkpoints and logs.
        steps: Total number of optimizer steps, including the steps before a stop.
        checkpoint_every: Optimizer steps between checkpoints. One Keras epoch consists of
            `checkpoint_every` optimizer steps.
        keep_checkpoints: Number of newest checkpoints to keep.
        keep_best: Also keeps the `keep_best` checkpoints with the lowest validation losses.
            Defaults to 0.
        validation: A sequence of batches for `model.evaluate`, such as `[(x, y)]`, or a function of
            (model, step) that returns a dictionary. Each value of the dictionary is a number, a
            Markdown text, an array or tensor with one number, or an image for TensorBoard, a uint8
            array `(height, width, 3)`. Validation runs at each checkpoint. Defaults to None, which
            means no validation.
        patience: Stops training after this many checkpoints without a lower validation loss. This
            loss is the value of `"loss"` in the results of `validation`. Defaults to None, which
            means no early stopping.
        callbacks: Keras callbacks. At a checkpoint, the callbacks run after validation and before
            saving. Their argument `logs` contains the numbers of the validation, such as
            `val_loss`. The training loss and metrics in `logs` are means over the steps since the
            last report. So they depend on `report_every`. The state of callbacks is not saved. If a
            callback stops training within an optimizer step, `fit` first completes this step. If
            training stops between two checkpoints, by a callback or because `checkpoint_every` does
            not divide `steps`, a resumed training counts `checkpoint_every` from there. Its
            checkpoints and dropout masks then differ from those of an uninterrupted training.
        seed: Seed of the dropout masks, an integer >= 0.
        resume: Whether to resume from the newest checkpoint in `directory`. If `resume` is False
            and `directory` contains a checkpoint, raises `UserError`.
        report_every: Optimizer steps between reports of loss, metrics and speed.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs.
        hyperparameters: Names and values for TensorBoard's tab HParams, which compares runs.
            Defaults to None, which means none.
        tokens: Function that takes the index of an optimizer step, counted from 0. It returns the
            number of target tokens in this step, without padding. Defaults to None, which reports
            steps per second instead of tokens per second.
        distribution: The devices and processes, from `training.distribution.start`. Several devices
            or processes need a `SlicedLogitsTrainer`. Defaults to one process and one device.

    Returns:
        The validation losses of all checkpoints, including checkpoints before a stop.

    Raises:
        UserError: If all checkpoints are damaged. If the newest undamaged checkpoint belongs to
            another model, or has more than `steps` steps. If the disk is full. If another process
            trains in `directory`. If the loss or a weight becomes infinite or NaN. Infinite or NaN
            weights are not saved.
        ValueError: If the model is not built, or has `steps_per_execution` > 1. If a count of steps
            or checkpoints is below 1. If a callback chooses or exchanges weights, but the optimizer
            has `use_ema`. If a layer of Keras has LoRA, which its saved weights would not keep. If
            `patience` or `keep_best` is given, but `validation` returns no `"loss"`. If `batches`
            ends. On TensorFlow, the end of `batches` causes an error of another type.
    """
    distribution = distribution or Distribution()
    _check(model, callbacks, distribution)
    check_sizes(
        steps=steps,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        report_every=report_every,
    )
    use_compilation_cache()
    folder = Path(directory) / "checkpoints"
    with ExitStack() as stack:
        if distribution.is_chief:
            stack.enter_context(training_lock(Path(directory)))
        step, history = _begin(model, folder, resume, distribution)
        if step > steps:
            raise UserError(
                f"{folder} already holds step {step:,}; `steps` must be at least {step:,}, because "
                f"`steps` includes the steps before a stop. Received: steps={steps}"
            )

        def save(model: Any, step: int, logs: Any) -> None:
            save_checkpoint(folder, model, step, keep_checkpoints, history, keep_best)

        if step == steps or history.is_over(patience):
            with distribution.fitting():  # as at the end of `model.fit`: EMA weights
                model.optimizer.finalize_variable_values(model.trainable_variables)
                copy_averages(inner_optimizer(model))
            return history
        accumulation = inner_optimizer(model).gradient_accumulation_steps or 1
        counting = {"start_step": step, "accumulation_steps": accumulation}
        local = distribution.local(model)
        bars = [ProgressBar(steps, **counting)] if distribution.is_chief and progress else []
        for bar in bars:
            stack.callback(bar.close)
        reporters: list[Any] = list(bars)
        if distribution.is_chief and tensorboard:
            writer = TensorBoardWriter(Path(directory) / "logs", first_step=step + 1)
            reporters.append(stack.enter_context(writer))
            writer.write_hyperparameters(hyperparameters or {})
        needs_loss = patience is not None or keep_best > 0
        measure = _measuring(validation, [*reporters, history], needs_loss)

        stack.enter_context(distribution.fitting())
        model.fit(
            fit_data(_unending(batches(step * accumulation)), model),
            initial_epoch=step // checkpoint_every,
            epochs=step // checkpoint_every - (step - steps) // checkpoint_every,
            steps_per_epoch=checkpoint_every * accumulation,
            shuffle=False,
            verbose=0,
            callbacks=[
                Reseed(seed, distribution, **counting),
                *bars,
                StepReports(reporters, tokens, report_every, distribution, **counting),
                AtCheckpoint(_check_weights, distribution.on_chief(measure, local), **counting),
                *callbacks,
                AtCheckpoint(
                    distribution.on_chief(save, local),
                    _stopping(history, patience, distribution),
                    **counting,
                ),
                StopAfter(steps, **counting),
            ],
        )
        copy_averages(inner_optimizer(model))
    end_iteration()
    return history


def _check(
    model: Any, callbacks: Sequence[keras.callbacks.Callback], distribution: Distribution
) -> None:
    """Raises `ValueError` for what `fit` would train or save otherwise than asked."""
    if not (model.compiled and model.built and model.steps_per_execution == 1):
        raise ValueError(
            "`model` must be compiled with `steps_per_execution=1`, and built (for example with "
            f"`keras.Input`). Received: compiled={model.compiled}, built={model.built}"
        )
    check_lora_is_kept(model)
    if type(distribution) is not Distribution and not isinstance(model, SlicedLogitsTrainer):
        raise ValueError(
            "`distribution` needs a `SlicedLogitsTrainer`; other models train on one device. "
            f"Received: distribution={distribution}, model={model}"
        )
    chosen = ("restore_best_weights", "save_best_only", "swap_on_epoch")
    for callback in callbacks if inner_optimizer(model).use_ema else ():
        if any(getattr(callback, name, False) for name in chosen):
            raise ValueError(
                "With `use_ema`, callbacks must not choose or exchange weights, because `fit` "
                "validates the EMA weights and ends with them. Use `patience` and `keep_best`. "
                f"Received: callback={type(callback).__name__}"
            )


def _begin(
    model: Any, folder: Path, resume: bool, distribution: Distribution
) -> tuple[int, ValidationHistory]:
    """Loads the newest checkpoint, and returns its step and the validation losses.

    If there is no checkpoint, returns step 0 and no losses.
    """

    def find() -> Path | None:
        remove_unfinished(folder)
        if not resume and checkpoint_folders(folder):
            raise UserError(
                f"{folder} already holds checkpoints: use resume=True or another folder"
            )
        return newest_checkpoint(folder)

    checkpoint = distribution.chief_first(find)
    with distribution.making():
        if checkpoint:
            restore(checkpoint, model)
        else:
            start_optimizer(model)
        distribution.prepare(model)
    if not checkpoint:
        return 0, ValidationHistory()
    return checkpoint_step(checkpoint), load_history(checkpoint)


def _unending(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches, then raises ValueError after the last batch.

    Without this error, Keras would end the epoch early.
    """
    count = 0
    for batch in batches:
        count += 1
        yield batch
    raise ValueError(f"`batches` must yield batches without end. Received: {count} batches")


def _measuring(
    validation: Sequence[Any] | Measure | None, reporters: list[Any], needs_loss: bool = False
) -> Action:
    """Returns a function that validates a model, for use with `AtCheckpoint`.

    If the optimizer keeps EMA weights, the function validates the model with the EMA weights.
    """
    measure = validation if callable(validation) else evaluation_of(validation or [])

    def action(model: Any, step: int, logs: dict[str, Any]) -> None:
        found: dict[str, Any] = {}
        if validation is not None:
            with ema_as_weights(model):
                found = {name: _result(x) for name, x in measure(model, step).items()}
        if needs_loss and "loss" not in found:
            raise ValueError(
                "`patience` and `keep_best` need a `validation` that returns a number as `loss`. "
                f"Received: validation results {sorted(found)}"
            )
        logs.update({f"val_{name}": x for name, x in found.items() if isinstance(x, float)})
        for reporter in reporters if found else ():
            reporter.report(step, {f"validation/{name}": x for name, x in found.items()})

    return action


def _result(value: Any) -> float | str | np.ndarray:
    """Converts a number that a validation returns, such as a tensor, to a float."""
    is_image = isinstance(value, np.ndarray) and value.shape[2:] == (3,)
    if isinstance(value, str) or is_image:
        return value
    return float(np.asarray(ops.convert_to_numpy(value)).item())


def _check_weights(model: Any, step: int, logs: dict[str, Any]) -> None:
    """Raises `UserError` if a weight is infinite or NaN. All processes must call this function.

    It waits for each sum before it begins the next one. On JAX, sums over the devices of several
    processes that run at the same time would block each other forever.
    """
    zeros = (ops.sum(ops.cast(weight, "float32") * 0.0) for weight in model.weights)
    if not math.isfinite(sum(float(ops.convert_to_numpy(zero)) for zero in zeros)):
        raise diverged("weights are", step)


def _stopping(
    history: ValidationHistory, patience: int | None, distribution: Distribution
) -> Action:
    """Returns a function that stops training early, for use with `AtCheckpoint`.

    The chief process decides for all processes when to stop.
    """

    def action(model: Any, step: int, logs: dict[str, Any]) -> None:
        if distribution.of_chief(history.is_over(patience)):
            model.stop_training = True

    return action


def evaluation_of(batches: Sequence[Any]) -> Measure:
    """Returns a function of (model, step) that evaluates the model on `batches`."""
    return lambda model, step: model.evaluate(
        fit_data(batches, model), steps=len(batches), verbose=0, return_dict=True
    )


def array_batches(
    x: Any, y: Any = None, batch_size: int = 32, seed: int = 0, sample_weight: Any = None
) -> Callable[[int], Iterator[tuple[Any, ...]]]:
    """Makes the argument `batches` of `fit` from arrays.

    Each pass over the arrays contains every row once, in a new random order. The rows of a batch
    depend only on `seed` and the index of the batch. All batches have `batch_size` rows, so a batch
    may contain rows of several passes.

    Example:

    ```python
    batches = array_batches({"ids": ids}, labels, batch_size=64, seed=1)
    x, y = next(batches(0))
    ```

    Args:
        x: NumPy array, or a nested structure of arrays with the same number of rows.
        y: The labels, an array or a nested structure of arrays. Defaults to None, which makes
            batches `(x,)`.
        batch_size: Rows per batch.
        seed: Seed of the order, an integer >= 0.
        sample_weight: The weights of the losses, an array or a nested structure of arrays. Defaults
            to None.

    Raises:
        ValueError: If the arrays have different numbers of rows, or if `sample_weight` is given
            without `y`.
    """
    data = tuple(part for part in (x, y, sample_weight) if part is not None)
    sizes = {len(array) for array in keras.tree.flatten(data)}
    if len(sizes) != 1 or (y is None and sample_weight is not None):
        raise ValueError(
            "`x`, `y` and `sample_weight` must have the same number of rows, and `sample_weight` "
            f"needs `y`. Received: rows={sorted(sizes)}, y={y}"
        )
    (size,) = sizes

    def stream(first: int) -> Iterator[tuple[Any, ...]]:
        rows = np.zeros(0, np.int64)
        pass_index, skipped = divmod(first * batch_size, size)
        for number in itertools.count(pass_index):
            order = np.random.default_rng([seed, number]).permutation(size)
            rows = np.concatenate([rows, order[skipped:]])
            skipped = 0
            while len(rows) >= batch_size:
                chosen, rows = rows[:batch_size], rows[batch_size:]
                yield keras.tree.map_structure(lambda array, chosen=chosen: array[chosen], data)

    return stream
