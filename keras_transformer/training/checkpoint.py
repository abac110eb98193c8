"""Writes, loads and averages checkpoints (§6.1)."""

import shutil
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend import without_tensorflow
from keras_transformer._files import atomic_write, read_json, sha256_of, write_json
from keras_transformer.errors import UserError
from keras_transformer.layers.saving import layer_changes
from keras_transformer.runs import checkpoints
from keras_transformer.runs.base_model import completed, leave_out
from keras_transformer.runs.checkpoints import ValidationHistory
from keras_transformer.runs.loading import load_checkpoint_model, loading_optimizer


def save_checkpoint(
    directory: str | Path,
    model: keras.Model,
    step: int,
    keep: int,
    history: ValidationHistory | None = None,
    keep_best: int = 0,
    base: Path | None = None,
) -> Path:
    """Writes a checkpoint for resuming training, then removes old checkpoints.

    A checkpoint is a folder such as `step-00001000`, which is always complete. Its file
    `model.keras` is the compiled model with the optimizer state. Its file `state.json` contains the
    step, the SHA-256 of `model.keras` and all validation losses so far.

    Keeps the newest `keep` checkpoints, and the `keep_best` checkpoints with the lowest losses in
    `history`. Leaves out the weights that are also in the file `base` of a model. If the disk is
    full, raises `UserError` and removes no checkpoint.
    """
    path = Path(directory) / f"step-{step:08d}"
    history = history or ValidationHistory()
    with atomic_write(path) as partial, without_tensorflow():
        partial.mkdir()
        model.save(partial / checkpoints.CHECKPOINT_MODEL)
        if base:
            leave_out(partial / checkpoints.CHECKPOINT_MODEL, base)
        digest = sha256_of(partial / checkpoints.CHECKPOINT_MODEL)
        state = {
            "format": checkpoints.CHECKPOINT_FORMAT,
            "step": step,
            "sha256": {checkpoints.CHECKPOINT_MODEL: digest},
            "validation_losses": history.losses,
        }
        write_json(partial / checkpoints.STATE, state)
    best = history.best(keep_best)
    for old in checkpoints.checkpoint_folders(directory)[:-keep]:
        if checkpoints.checkpoint_step(old) not in best:
            # Renamed, so that `step-...` is always complete.
            shutil.rmtree(old.rename(old.with_name(f".partial-{old.name}")))
    return path


def load_checkpoint(path: str | Path, model: keras.Model) -> int:
    """Loads a checkpoint into a compiled model with the same architecture and optimizer.

    Returns the optimizer step of the checkpoint. Raises `UserError` if the checkpoint is incomplete
    or damaged, or if its weights or its optimizer state do not fit the model.
    """
    path, step = Path(path), checkpoints.verify_checkpoint(path)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    with (
        loading_optimizer(f"checkpoint {path} is of another model or optimizer"),
        completed(path / checkpoints.CHECKPOINT_MODEL) as file,
        zipfile.ZipFile(file) as archive,
        tempfile.TemporaryDirectory(prefix=f".partial-{path.name}-", dir=path.parent) as folder,
    ):
        # Loading the weights from within the zip archive would be slow.
        model.load_weights(archive.extract("model.weights.h5", folder))
    return step


def average_checkpoints(paths: Sequence[str | Path], output: str | Path) -> keras.Model:
    """Writes a model whose weights are the mean of the weights of several checkpoints (§6.1).

    The mean is computed in float64. Weights of integers, such as counters, are those of the last
    path. The new model has no optimizer state.

    Example:

    ```python
    average_checkpoints(run.checkpoints()[-5:], "average.keras")
    ```

    Args:
        paths: One or more checkpoint folders, all of the same model.
        output: The `.keras` file to write.

    Returns:
        The averaged model.

    Raises:
        UserError: If a checkpoint is damaged. If there are several checkpoints and the model is
            quantized or uses LoRA.
    """
    model = load_checkpoint_model(paths[0])
    changes = set().union(*layer_changes(model).values())
    if len(paths) > 1 and changes & {"quantization", "lora_rank"}:
        raise UserError(
            "checkpoints of quantized models or models with LoRA cannot be averaged. The mean of "
            "quantized weights or LoRA factors is not the mean of the weights. "
            f"Received: {paths[0]}"
        )
    weights = model.get_weights()
    totals = [np.asarray(weight, "float64") for weight in weights]
    for path in paths[1:]:
        weights = load_checkpoint_model(path).get_weights()
        for total, weight in zip(totals, weights, strict=True):
            total += weight
    for variable, total, last in zip(model.weights, totals, weights, strict=True):
        is_float = keras.backend.is_float_dtype(variable.dtype)
        variable.assign(total / len(paths) if is_float else last)
    with atomic_write(output) as partial, without_tensorflow():
        model.save(partial)
    return model


def clean_up(directory: str | Path) -> None:
    """Removes the remains of checkpoints that a killed process was writing, removing or loading."""
    for path in Path(directory).glob(f".partial-step-{'[0-9]' * 8}*"):
        shutil.rmtree(path)


def check_same_options(
    directory: str | Path, options: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Checks that a program, which `fit` resumes, goes on with the options with which it began.

    The first call writes the options to `options.json` in the folder. Later calls compare.

    Example:

    >>> check_same_options("runs/mine", vars(parser.parse_args()), may_change=["data_dir"])

    Args:
        directory: The folder of the program's runs.
        options: The options by name. They are compared as texts.
        may_change: Names of options that may change between calls.

    Raises:
        UserError: If an option has changed.
    """
    path = Path(directory) / "options.json"
    given = {name: str(value) for name, value in options.items() if name not in may_change}
    if not path.exists():
        write_json(path, given)
    kept = read_json(path)
    pairs = {name: (given.get(name), kept.get(name)) for name in kept | given}
    changes = [f"{name}={new}, before {old}" for name, (new, old) in pairs.items() if new != old]
    if changes:
        raise UserError(
            f"{directory} must be used with the options with which it was begun, or choose another "
            f"folder. Received: {', '.join(changes)}"
        )
