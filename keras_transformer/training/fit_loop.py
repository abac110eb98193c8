"""The training loop for any Keras model and any stream of batches."""

import functools
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.compile_function import use_compilation_cache
from keras_transformer._backend.fit_data import fit_data
from keras_transformer._backend.operations import whole_tensor
from keras_transformer.errors import UserError, check_sizes
from keras_transformer.layers.base import check_lora_is_kept
from keras_transformer.runs.checkpoints import ValidationHistory, checkpoint_folders, load_history
from keras_transformer.runs.folder import training_lock
from keras_transformer.training.callbacks import ProgressBar, Steps, StopAfter, diverged
from keras_transformer.training.checkpoint import clean_up, load_checkpoint, save_checkpoint
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution
from keras_transformer.training.step.optimizer import ema_as_weights, inner_optimizer
from keras_transformer.training.tensorboard import TensorBoardWriter

Measure = Callable[[keras.Model, int], Mapping[str, Any]]


def fit(
    model: keras.Model,
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
    distribution: Distribution = ONE_DEVICE,
    base: Path | None = None,
) -> ValidationHistory:
    """Trains a compiled model for `steps` optimizer steps, and can resume after a stop or crash.

    Writes checkpoints, for example `checkpoints/step-00001000/model.keras` with the optimizer
    state, and TensorBoard logs in `logs/`.

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
        keep_best: Number of checkpoints with the lowest validation losses to keep besides.
        validation: A sequence of batches for `model.evaluate`, such as `[(x, y)]`, or a function of
            (model, step) that returns a dictionary. Each value of the dictionary is a number, a
            Markdown text, an array or tensor with one number, or an image for TensorBoard, a uint8
            array `(height, width, 3)`. Validation runs at each checkpoint. Defaults to None, which
            means no validation.
        patience: Stops training after this many checkpoints without a lower `"loss"` of
            `validation`. Defaults to None, which means no early stopping.
        callbacks: Keras callbacks. At a checkpoint, they run after validation and before saving.
            Their argument `logs` contains the numbers of the validation, such as `val_loss`, and
            means of the training loss and metrics over the steps since the last report. The state
            of callbacks is not saved. If a callback stops training within an optimizer step, `fit`
            first completes this step. If training stops between two checkpoints, by a callback or
            because `checkpoint_every` does not divide `steps`, a resumed training counts
            `checkpoint_every` from there. Its checkpoints and dropout masks then differ from those
            of an uninterrupted training.
        seed: Seed of the dropout masks, an integer >= 0.
        resume: Whether to resume from the newest checkpoint in `directory`. If `resume` is False
            and `directory` contains a checkpoint, raises `UserError`.
        report_every: Optimizer steps between reports of loss, metrics and speed.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs.
        hyperparameters: Names and values for TensorBoard's tab HParams. Defaults to none.
        tokens: Function that takes the index of an optimizer step, counted from 0, and returns its
            number of real target tokens. Defaults to None, which reports steps per second instead
            of tokens per second.
        distribution: The devices and processes, such as `Distribution.all_devices()`. `batches` are
            then those of `distribution.split`, or of a `BatchPlan` with `distribution.shard`.
            Defaults to one process and one device.
        base: The `.keras` file of a model from which training starts. Checkpoints then have only
            the weights that differ from it. Defaults to None: they have all.

    Returns:
        The validation losses of all checkpoints, including checkpoints before a stop.

    Raises:
        UserError: If the newest checkpoint is damaged, belongs to another model, or has more than
            `steps` steps. If the disk is full. If another process trains in `directory`. If the
            loss or a weight becomes infinite or NaN.
        ValueError: If the model is not built, or has `steps_per_execution` > 1. If a count is below
            1. If a callback chooses or exchanges weights, but the optimizer has `use_ema`. If a
            layer of Keras has LoRA, which its saved weights would not keep. If `patience`
            or `keep_best` is given, but `validation` returns no `"loss"`. If `batches` ends. On
            TensorFlow, that is an error of another type.
    """
    _check(model, batches, callbacks)
    check_sizes(steps=steps, checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints)
    use_compilation_cache()
    directory = Path(directory).absolute()  # A callback may change the current directory.
    folder = directory / "checkpoints"
    with ExitStack() as stack:
        if distribution.is_chief:
            stack.enter_context(training_lock(directory))
        step, history = _begin(model, folder, resume, distribution)
        if step > steps:
            raise UserError(
                f"{folder} already holds step {step:,}; `steps` must be at least {step:,}, because "
                f"`steps` includes the steps before a stop. Received: steps={steps}"
            )
        stack.enter_context(distribution.fitting(model))
        if step == steps or history.is_over(patience):
            # As at the end of `model.fit`: EMA weights.
            model.optimizer.finalize_variable_values(model.trainable_variables)
            return history
        accumulation = inner_optimizer(model).gradient_accumulation_steps or 1
        reporters: list[Any] = []
        if distribution.is_chief and progress:
            reporters.append(stack.enter_context(ProgressBar(steps, step)))
        if distribution.is_chief and tensorboard:
            writer = TensorBoardWriter(directory / "logs", first_step=step + 1)
            reporters.append(stack.enter_context(writer))
            writer.write_hyperparameters(hyperparameters or {})
        counter = Steps(step, accumulation, reporters, seed, tokens, report_every, distribution)

        needs_loss = patience is not None or keep_best > 0
        measure = _measuring(validation, [*reporters, history], needs_loss)
        local = distribution.local(model)

        def validate(epoch: int, logs: dict[str, Any]) -> None:
            _check_weights(counter.model, counter.step)
            action = functools.partial(measure, step=counter.step, logs=logs)
            distribution.on_chief(action, counter.model, local)

        def save_and_stop(epoch: int, logs: dict[str, Any]) -> None:
            kept: Any = {"keep": keep_checkpoints, "history": history, "keep_best": keep_best}
            kept["base"] = base
            action = functools.partial(save_checkpoint, folder, step=counter.step, **kept)
            distribution.on_chief(action, counter.model, local)
            if distribution.of_chief(history.is_over(patience)):
                model.stop_training = True

        model.fit(
            fit_data(_unending(batches(step * accumulation)), model),
            initial_epoch=step // checkpoint_every,
            epochs=step // checkpoint_every - (step - steps) // checkpoint_every,
            steps_per_epoch=checkpoint_every * accumulation,
            shuffle=False,
            verbose=0,
            callbacks=[
                counter,
                keras.callbacks.LambdaCallback(on_epoch_end=validate),
                *callbacks,
                keras.callbacks.LambdaCallback(on_epoch_end=save_and_stop),
                StopAfter(steps, counter, model),
            ],
        )
    if keras.config.backend() == "tensorflow":
        gc.collect()  # It logs an error about an iterator that Python's exit finds in a cycle.
    return history


def _check(model: keras.Model, batches: object, callbacks: Sequence[object]) -> None:
    """Raises `ValueError` for what `fit` would train or save otherwise than asked."""
    if not callable(batches):
        raise ValueError(
            "`batches` must be a function such as the result of `array_batches`, or `plan.batches` "
            f"of a `ParallelDataset`. Received: batches of type {type(batches).__name__}"
        )
    if not (model.compiled and model.built and model.steps_per_execution == 1):
        raise ValueError(
            "`model` must be compiled with `steps_per_execution=1`, and built (for example with "
            f"`keras.Input`). Received: compiled={model.compiled}, built={model.built}"
        )
    check_lora_is_kept(model)
    chosen = ("restore_best_weights", "save_best_only", "swap_on_epoch")
    for callback in callbacks if inner_optimizer(model).use_ema else ():
        if any(getattr(callback, name, False) for name in chosen):
            raise ValueError(
                "With `use_ema`, callbacks must not choose or exchange weights, because `fit` "
                "validates the EMA weights and ends with them. Use `patience` and `keep_best`. "
                f"Received: callback={type(callback).__name__}"
            )


def _begin(
    model: keras.Model, folder: Path, resume: bool, distribution: Distribution
) -> tuple[int, ValidationHistory]:
    """Loads the newest checkpoint, if any. Returns its step and all validation losses so far."""
    if distribution.is_chief:
        clean_up(folder)
    checkpoints = distribution.chief_first(lambda: checkpoint_folders(folder))
    if checkpoints and not resume:
        raise UserError(f"{folder} already holds checkpoints: use resume=True or another folder")
    step, history = 0, ValidationHistory()
    with distribution.making():
        if checkpoints:
            step, history = load_checkpoint(checkpoints[-1], model), load_history(checkpoints[-1])
        elif not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    return step, history


def _unending(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches, then raises ValueError. Otherwise, Keras would end the epoch early."""
    yield from batches
    raise ValueError("`batches` must yield batches without end")


def _measuring(
    validation: Sequence[Any] | Measure | None, reporters: list[Any], needs_loss: bool
) -> Callable[..., None]:
    """Returns a function that validates a model, with its EMA weights if it has any."""
    measure = validation if callable(validation) else evaluation_of(validation or [])

    def action(model: keras.Model, step: int, logs: dict[str, Any]) -> None:
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


def _check_weights(model: keras.Model, step: int) -> None:
    """Raises `UserError` if a weight is infinite or NaN. All processes must call this function."""
    # Each sum is awaited. On JAX, several at a time over many processes would block each other.
    zeros = (ops.sum(ops.cast(weight, "float32") * 0.0) for weight in model.weights)
    if not math.isfinite(sum(float(ops.convert_to_numpy(whole_tensor(x))) for x in zeros)):
        raise diverged("weights are", step)


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
    depend only on `seed` and the index of the batch, and may be of several passes.

    Example:

    ```python
    batches = array_batches({"ids": ids}, labels, batch_size=64, seed=1)
    x, y = next(batches(0))
    ```

    Args:
        x: NumPy array, or a nested structure of arrays with the same number of rows.
        y: The labels, as `x`. Defaults to None, which makes batches `(x,)`.
        batch_size: Rows per batch.
        seed: Seed of the order, an integer >= 0.
        sample_weight: The weights of the losses, as `x`. Defaults to None.

    Raises:
        ValueError: If the numbers of rows differ, or if `sample_weight` is given without `y`.
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
