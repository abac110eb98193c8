"""Checkpoints that are complete or not there, and resume bit for bit."""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.without_tensorflow import without_tensorflow
from keras_transformer._files import atomic_write, read_json
from keras_transformer.errors import UserError
from keras_transformer.keras_file import read_config
from keras_transformer.training.transformer_trainer import TransformerTrainer
from keras_transformer.training.validation_history import ValidationHistory

_MODEL = "model.keras"
_STATE = "state.json"
_MOST_STATE_BYTES = 16 * 1024 * 1024  # the validation loss of a checkpoint takes about 40


def save_checkpoint(
    directory: str | Path,
    model: Any,
    step: int,
    keep: int,
    history: ValidationHistory | None = None,
    keep_best: int = 0,
) -> Path:
    """Write all that training needs to go on from here, and remove the oldest checkpoints.

    A checkpoint is the folder `step-00001000` of `model.keras` (weights and optimizer) and
    `state.json` (the step, the SHA-256 of `model.keras`, and the validation losses so far). It is
    written beside and renamed, so a folder of that name is complete. Data and dropout need no
    state, since they are functions of seed and step (see `BatchPlan` and `Reseed`).

    Args:
        directory: Folder of the checkpoints.
        model: Compiled Keras model.
        step: Integer, optimizer steps made.
        keep: Integer, how many of the newest checkpoints remain.
        history: Validation losses up to this step.
        keep_best: Integer, how many checkpoints with the lowest losses remain besides.

    Returns:
        The new checkpoint's folder.

    Raises:
        UserError: If the disk is full; earlier checkpoints are unharmed.
    """
    directory = Path(directory)
    path = checkpoint_path(directory, step)
    history = history or ValidationHistory()
    with atomic_write(path) as partial, without_tensorflow():
        partial.mkdir()
        model.save(partial / _MODEL)
        state = {
            "step": step,
            "sha256": {_MODEL: _sha256(partial / _MODEL)},
            "validation_losses": history.losses,
        }
        (partial / _STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    best = {checkpoint_path(directory, step) for step in history.best(keep_best)}
    for old in sorted(directory.glob("step-*"))[:-keep]:
        if old not in best:
            _remove(old)
    return path


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return Path(directory) / f"step-{step:08d}"


def load_history(path: str | Path) -> ValidationHistory:
    """Read the validation losses that were known when an undamaged checkpoint was written."""
    losses = _read_state(Path(path)).get("validation_losses", {})
    return ValidationHistory({int(step): loss for step, loss in losses.items()})


def load_checkpoint(path: str | Path) -> tuple[Any, int]:
    """Read a checkpoint.

    Args:
        path: Folder of one checkpoint.

    Returns:
        The compiled model, and the optimizer steps made.

    Raises:
        UserError: If the checkpoint is incomplete or damaged.
    """
    path = Path(path)
    step = verify_checkpoint(path)
    read_config(path / _MODEL)
    return keras.saving.load_model(path / _MODEL), step


def newest_checkpoint(directory: str | Path) -> Path | None:
    """Find the newest undamaged checkpoint of a folder.

    Newer ones that are damaged are warned of, and renamed so that they do not stand in the way.

    Args:
        directory: Folder of the checkpoints.

    Returns:
        The checkpoint's folder, or `None` if there is no checkpoint.

    Raises:
        UserError: If there are checkpoints, but all are damaged; nothing is renamed then.
    """
    damaged: dict[Path, UserError] = {}
    for path in sorted(Path(directory).glob("step-*"), reverse=True):
        try:
            verify_checkpoint(path)
        except UserError as error:
            damaged[path] = error
            continue
        for newer, reason in damaged.items():
            warnings.warn(f"{reason}; going on from {path.name}", stacklevel=2)
            _rename(newer, newer.with_name(f"damaged-{newer.name}"))
        return path
    if damaged:
        raise next(iter(damaged.values()))
    return None


def verify_checkpoint(path: str | Path) -> int:
    """Check that a checkpoint is as it was written.

    Args:
        path: Folder of one checkpoint.

    Returns:
        The optimizer steps made.

    Raises:
        UserError: If a file is missing or differs.
    """
    path = Path(path)
    try:
        state = _read_state(path)
        step = int(state["step"])
        damaged = _sha256(path / _MODEL) != state["sha256"][_MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"checkpoint {path} is incomplete: {error}") from None
    if damaged:
        raise UserError(f"checkpoint {path} is damaged: {_MODEL} is not as it was written")
    return step


def load_checkpoint_model(path: str | Path) -> Any:
    """Read the model of a checkpoint, without optimizer and, if it has one, without its trainer.

    Where the optimizer averages the weights, the averages are the model's weights.

    Raises:
        UserError: If the checkpoint is incomplete or damaged.
    """
    verify_checkpoint(path)
    file = Path(path) / _MODEL
    config = read_config(file)
    model = keras.saving.load_model(file, compile=False)
    if _has_averages(config):
        compiled = keras.saving.load_model(file)
        compiled.optimizer.finalize_variable_values(compiled.trainable_variables)
        model.set_weights(compiled.get_weights())
    return model.model if isinstance(model, TransformerTrainer) else model


def _has_averages(config: dict[str, Any]) -> bool:
    compiled = config.get("compile_config") or {}
    optimizer = compiled.get("optimizer", {}).get("config", {})
    inner = optimizer.get("inner_optimizer", {}).get("config", optimizer)
    return inner.get("use_ema", False)


def _read_state(path: Path) -> Any:
    with (path / _STATE).open("rb") as file:
        return read_json(file, _MOST_STATE_BYTES)


def remove_unfinished(directory: str | Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in Path(directory).glob(".*"):
        shutil.rmtree(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint so that at no moment half of one goes by its name."""
    hidden = path.with_name(f".removed-{path.name}")
    _rename(path, hidden)
    shutil.rmtree(hidden)


def _rename(path: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.replace(path, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
