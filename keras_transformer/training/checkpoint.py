"""Checkpoints that are complete or not there, and resume bit for bit; their average (§6.1)."""

import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.process import without_tensorflow
from keras_transformer._files import atomic_write, read_json
from keras_transformer.errors import UserError
from keras_transformer.keras_file import read_config
from keras_transformer.run import checkpoint_folders

_MODEL = "model.keras"
_STATE = "state.json"
_MOST_STATE_BYTES = 16 * 1024 * 1024  # the validation loss of a checkpoint takes about 40
_FORMAT = 2  # 1: model.keras held the TransformerTrainer of 0.1.0.dev0


class ValidationHistory:
    """Validation losses of all checkpoints of a run.

    It is a reporter: it keeps the losses that `Validation` reports. Checkpoints save them, so that
    a resumed run knows the earlier ones. Early stopping looks at the loss, not at BLEU: the loss is
    of all validation sentences and always there, BLEU of a few greedy translations and mostly noise
    from one checkpoint to the next.

    Args:
        losses: Optimizer steps to validation loss. Defaults to none.
    """

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.losses = dict(losses or {})

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        if "validation/loss" in values:
            self.losses[step] = values["validation/loss"]

    def best(self, count: int) -> list[int]:
        """Steps with the lowest losses, in the order of steps; of equal ones the earlier."""

        def rank(step: int) -> tuple[float, int]:
            loss = self.losses[step]
            return (math.inf if math.isnan(loss) else loss), step

        return sorted(sorted(self.losses, key=rank)[:count])

    def is_over(self, patience: int | None) -> bool:
        """Whether none of the last `patience` losses was lower than the lowest before them."""
        if patience is None or not self.losses:
            return False
        (best,) = self.best(1)
        return sum(step > best for step in self.losses) >= patience


def save_checkpoint(
    directory: str | Path,
    model: Any,
    step: int,
    keep: int,
    history: ValidationHistory | None = None,
    keep_best: int = 0,
) -> Path:
    """Write all that training needs to resume from here, and remove the oldest checkpoints.

    A checkpoint is the folder `step-00001000` of `model.keras` (the model, compiled, with the state
    of its optimizer) and `state.json` (the step, the SHA-256 of `model.keras`, and the validation
    losses so far). It is written under another name and renamed, so a folder of that name is
    complete. Data and dropout need no state, since they are functions of seed and step (see
    `BatchPlan` and `Reseed`). Other files in `directory` are left alone.

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
            "format": _FORMAT,
            "step": step,
            "sha256": {_MODEL: _sha256(partial / _MODEL)},
            "validation_losses": history.losses,
        }
        (partial / _STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    best = {checkpoint_path(directory, step) for step in history.best(keep_best)}
    for old in checkpoint_folders(directory)[:-keep]:
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


def load_checkpoint(path: str | Path, model: Any) -> int:
    """Load weights and optimizer state of a checkpoint into a model.

    Without the code of the model, `keras.saving.load_model(path / "model.keras")` reads it.

    Args:
        path: Folder of one checkpoint.
        model: The compiled model that the checkpoint was saved of, or one built alike.

    Returns:
        The optimizer steps made.

    Raises:
        UserError: If the checkpoint is incomplete, damaged, of another model or an older release.
    """
    step, _ = _check_loadable(Path(path))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    try:
        with warnings.catch_warnings():  # Keras warns where it leaves the optimizer as it is
            warnings.filterwarnings("error", message="Skipping variable loading for optimizer")
            _load_weights(Path(path), model)
    except (ValueError, UserWarning) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"checkpoint {path} is of another model or optimizer: {reason}") from None
    return step


def _load_weights(path: Path, model: Any) -> None:
    """Load weights and optimizer; from a file of their own, since reading in an archive is slow."""
    with (
        zipfile.ZipFile(path / _MODEL) as archive,
        tempfile.TemporaryDirectory(prefix=".partial-", dir=path) as folder,
    ):
        model.load_weights(archive.extract("model.weights.h5", folder))


def newest_checkpoint(directory: str | Path) -> Path | None:
    """Find the newest undamaged checkpoint of a folder.

    Newer ones that are damaged are warned of and renamed to `damaged-step-...`.

    Args:
        directory: Folder of the checkpoints.

    Returns:
        The checkpoint's folder, or `None` if there is no checkpoint.

    Raises:
        UserError: If there are checkpoints, but all are damaged; nothing is renamed then.
    """
    damaged: dict[Path, UserError] = {}
    for path in reversed(checkpoint_folders(directory)):
        try:
            verify_checkpoint(path)
        except UserError as error:
            damaged[path] = error
            continue
        for newer, reason in damaged.items():
            warnings.warn(f"{reason}; resuming from {path.name}", stacklevel=2)
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


def average_checkpoints(
    paths: Sequence[str | Path], output: str | Path, previous: str | Path | None = None
) -> None:
    """Write a model whose weights are the mean of those of some checkpoints (§6.1).

    Sums are float64; `output` holds no optimizer state. At every moment `output` is the whole of
    the old file or of the new one.

    Example:

    ```python
    average_checkpoints(run.checkpoints()[-5:], run.model_path)
    ```

    Args:
        paths: Folders of one or more checkpoints of the same model.
        output: The `.keras` file to write.
        previous: Where to keep a copy of an older `output`. Defaults to None: nowhere.

    Raises:
        UserError: If there is no checkpoint, one is damaged, or their weights do not match.
    """
    if not paths:
        raise UserError("there is no checkpoint to average")
    model = load_checkpoint_model(paths[0])
    totals = [np.asarray(weight, "float64") for weight in model.get_weights()]
    for path in paths[1:]:
        weights = load_checkpoint_model(path).get_weights()
        if [weight.shape for weight in weights] != [total.shape for total in totals]:
            raise UserError(f"{paths[0]} and {path} are checkpoints of different models")
        for total, weight in zip(totals, weights, strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])
    with atomic_write(output) as partial, without_tensorflow():
        model.save(partial)
        if previous and Path(output).exists():
            with atomic_write(previous) as copy:
                shutil.copyfile(output, copy)


def load_checkpoint_model(path: str | Path) -> Any:
    """Read the model of a checkpoint, without its optimizer.

    Where the optimizer keeps averages of the weights (EMA), they are the model's weights.

    Raises:
        UserError: If the checkpoint is incomplete, damaged or of an older release.
    """
    _, config = _check_loadable(Path(path))
    file = Path(path) / _MODEL
    model = keras.saving.load_model(file, compile=False)
    if _has_averages(config):
        compiled = keras.saving.load_model(file)
        compiled.optimizer.finalize_variable_values(compiled.trainable_variables)
        model.set_weights(compiled.get_weights())
    return model


def _check_loadable(path: Path) -> tuple[int, dict[str, Any]]:
    """The step of a checkpoint, and the configuration of its model."""
    step = verify_checkpoint(path)
    if _read_state(path).get("format") != _FORMAT:
        raise UserError(
            f"checkpoint {path} was written by keras3-transformer 0.1.0.dev0, before checkpoints "
            "held the model itself: finish this run with that release, or begin a new one (whose "
            "training.initial_run may name the finished run)"
        )
    return step, read_config(path / _MODEL)


def _has_averages(config: dict[str, Any]) -> bool:
    compiled = config.get("compile_config") or {}
    optimizer = compiled.get("optimizer", {}).get("config", {})
    inner = optimizer.get("inner_optimizer", {}).get("config", optimizer)
    return inner.get("use_ema", False)


def _read_state(path: Path) -> Any:
    with (path / _STATE).open("rb") as file:
        return read_json(file, _MOST_STATE_BYTES)


def remove_unfinished(directory: str | Path) -> None:
    """Remove the checkpoints that a killed process left half written or half removed."""
    for state in ("partial", "removed"):
        for path in Path(directory).glob(f".{state}-step-{'[0-9]' * 8}"):
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
