"""Writes, loads and averages checkpoints (§6.1)."""

import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.process import without_tensorflow
from keras_transformer._files import atomic_write, is_keras_file, sha256_of
from keras_transformer.errors import UserError
from keras_transformer.layers.saving import layer_changes
from keras_transformer.runs.checkpoints import (
    CHECKPOINT_FORMAT,
    CHECKPOINT_MODEL,
    STATE,
    ValidationHistory,
    checkpoint_folders,
    load_checkpoint_model,
    loading_optimizer,
    verify_checkpoint,
)

_EXTRACTED = ".partial-"  # prefix of folders in a checkpoint


def save_checkpoint(
    directory: str | Path,
    model: Any,
    step: int,
    keep: int,
    history: ValidationHistory | None = None,
    keep_best: int = 0,
) -> Path:
    """Writes a checkpoint for resuming training, then removes old checkpoints.

    A checkpoint is a folder such as `step-00001000`. Its file `model.keras` is the compiled model
    with the optimizer state. Its file `state.json` contains the step, the SHA-256 of `model.keras`
    and all validation losses so far. The folder is first written under a temporary name and then
    renamed, so a checkpoint is always complete. The data order and the dropout masks are not saved,
    because they depend only on the seed and the step.

    Keeps the newest `keep` checkpoints, and the `keep_best` checkpoints with the lowest losses in
    `history`. If the disk is full, raises `UserError` and removes no checkpoint.
    """
    directory = Path(directory)
    path = checkpoint_path(directory, step)
    history = history or ValidationHistory()
    with atomic_write(path) as partial, without_tensorflow():
        partial.mkdir()
        model.save(partial / CHECKPOINT_MODEL)
        state = {
            "format": CHECKPOINT_FORMAT,
            "step": step,
            "sha256": {CHECKPOINT_MODEL: sha256_of(partial / CHECKPOINT_MODEL)},
            "validation_losses": history.losses,
        }
        (partial / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    best = {checkpoint_path(directory, step) for step in history.best(keep_best)}
    for old in checkpoint_folders(directory)[:-keep]:
        if old not in best:  # Renamed first, so that a folder `step-...` is always complete.
            _rename(old, hidden := old.with_name(f".removed-{old.name}"))
            shutil.rmtree(hidden)
    return path


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Returns the path of the checkpoint folder for an optimizer step."""
    return Path(directory) / f"step-{step:08d}"


def load_checkpoint(path: str | Path, model: Any) -> int:
    """Loads a checkpoint into a compiled model with the same architecture and optimizer.

    Returns the optimizer step of the checkpoint. Raises `UserError` if the checkpoint is incomplete
    or damaged, or if its weights or its optimizer state do not fit the model.
    """
    step = verify_checkpoint(path)
    restore(Path(path), model)
    return step


def restore(path: Path, model: Any) -> None:
    """Loads the weights and the optimizer state of a verified checkpoint into a compiled model.

    Extracts the weights file first, because loading it from within the zip archive is slow.
    """
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    with (
        loading_optimizer(f"checkpoint {path} is of another model or optimizer"),
        zipfile.ZipFile(path / CHECKPOINT_MODEL) as archive,
        tempfile.TemporaryDirectory(prefix=_EXTRACTED, dir=path) as folder,
    ):
        model.load_weights(archive.extract("model.weights.h5", folder))


def newest_checkpoint(directory: str | Path) -> Path | None:
    """Returns the folder of the newest undamaged checkpoint, or None if there is no checkpoint.

    If newer checkpoints are damaged, warns and renames their folders to `damaged-step-...`. If all
    checkpoints are damaged, raises `UserError` and renames no folder.
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


def average_checkpoints(
    paths: Sequence[str | Path],
    output: str | Path,
    previous: str | Path | None = None,
    members: Mapping[str, str] | None = None,
) -> Any:
    """Writes a model whose weights are the mean of the weights of several checkpoints (§6.1).

    The mean is computed in float64. Weights of integers, such as counters, are those of the last
    path. The new model has no optimizer state. Its file is written atomically.

    Example:

    ```python
    average_checkpoints(run.checkpoints()[-5:], "average.keras")
    ```

    Args:
        paths: One or more checkpoint folders, all of the same model.
        output: The `.keras` file to write.
        previous: If `output` is already a `.keras` file that is not damaged, it is copied to this
            path. Defaults to None, which means no copy.
        members: Texts to add to the archive `output`, by their names in the archive. Defaults to
            None.

    Returns:
        The averaged model.

    Raises:
        UserError: If a checkpoint is damaged. If there are several checkpoints and the model is
            quantized or uses LoRA.
    """
    model = load_checkpoint_model(paths[0])
    if len(paths) > 1 and any(
        {"quantization", "lora_rank"} & x.keys() for x in layer_changes(model).values()
    ):
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
    model.set_weights(
        [
            total / len(paths) if keras.backend.is_float_dtype(variable.dtype) else last
            for variable, total, last in zip(model.weights, totals, weights, strict=True)
        ]
    )
    with atomic_write(output) as partial, without_tensorflow():
        model.save(partial)
        with zipfile.ZipFile(partial, "a") as archive:
            for name, text in (members or {}).items():
                archive.writestr(name, text)
        if previous and is_keras_file(output):
            with atomic_write(previous) as copy:
                shutil.copyfile(output, copy)
    return model


def remove_unfinished(directory: str | Path) -> None:
    """Removes the remains of checkpoints that a killed process was writing, removing or loading."""
    step = f"step-{'[0-9]' * 8}"
    for pattern in (f".partial-{step}", f".removed-{step}", f"{step}/{_EXTRACTED}*"):
        for path in Path(directory).glob(pattern):
            shutil.rmtree(path)


def _rename(path: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.replace(path, target)


def check_same_options(
    directory: str | Path, options: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Checks that a program goes on with the options with which it began.

    `fit` resumes from the checkpoints in its folder, whatever options a program was called with. A
    program that calls this function first does not report the results of other options.

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
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name in {**kept, **given} if kept.get(name) != given.get(name)]
    if changed:
        differences = ", ".join(f"{x}={given.get(x)}, before {kept.get(x)}" for x in changed)
        raise UserError(
            f"{directory} must be used with the options with which it was begun, or choose another "
            f"folder. Received: {differences}"
        )
