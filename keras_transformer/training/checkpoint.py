"""Writes, loads and averages checkpoints (§6.1)."""

import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.process import without_tensorflow
from keras_transformer._files import atomic_write, is_keras_file, read_config, sha256_of
from keras_transformer.errors import UserError
from keras_transformer.layers.changes import layer_changes
from keras_transformer.layers.placeholder_weights import placeholder_weights
from keras_transformer.models.base import loading_in_float32
from keras_transformer.runs.checkpoints import checkpoint_folders
from keras_transformer.runs.model_file import (
    AVERAGE_LAST_MEMBER,
    CHECKPOINT_MEMBER,
    TOKENIZER_MEMBER,
)
from keras_transformer.runs.validation_history import STATE, ValidationHistory, read_state
from keras_transformer.training.optimizer import inner_optimizer

_MODEL = "model.keras"
_EXTRACTED = ".partial-"  # prefix of folders in a checkpoint
_FORMAT = 2  # in format 1, of release 0.1.0.dev0, model.keras held a trainer, not a model


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
        model.save(partial / _MODEL)
        state = {
            "format": _FORMAT,
            "step": step,
            **_traits(model),
            "sha256": {_MODEL: sha256_of(partial / _MODEL)},
            "validation_losses": history.losses,
        }
        (partial / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    best = {checkpoint_path(directory, step) for step in history.best(keep_best)}
    for old in checkpoint_folders(directory)[:-keep]:
        if old not in best:
            _remove(old)
    return path


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Returns the path of the checkpoint folder for an optimizer step."""
    return Path(directory) / f"step-{step:08d}"


def load_checkpoint(path: str | Path, model: Any) -> int:
    """Loads a checkpoint into a compiled model with the same architecture and optimizer.

    Returns the optimizer step of the checkpoint. Raises `UserError` if the checkpoint is incomplete
    or damaged, belongs to another model, or has the format of an older release.
    """
    step, _ = _check_loadable(Path(path))
    state = read_state(Path(path))
    for name, trait in _traits(model).items():
        if state.get(name, trait) != trait:  # older checkpoints have fewer traits
            raise UserError(
                f"checkpoint {path} is of another model or optimizer: its {name} are "
                f"{state[name]}, and those of the model are {trait}"
            )
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    with _complete_loading(f"checkpoint {path} is of another model or optimizer"):
        _load_weights(Path(path), model)
    return step


def _traits(model: Any) -> dict[str, Any]:
    """Returns what a checkpoint and a model have in common, but Keras does not compare."""
    trainable = {id(weight) for weight in model.trainable_variables}
    heads = [getattr(layer, "num_heads", None) for layer in model._flatten_layers()]
    return {
        "parameters": model.count_params(),
        "frozen_weights": [i for i, x in enumerate(model.weights) if id(x) not in trainable],
        "num_heads": [x for x in heads if isinstance(x, int)],  # weights have the same shapes
        "gradient_accumulation_steps": inner_optimizer(model).gradient_accumulation_steps or 1,
    }


@contextmanager
def _complete_loading(message: str) -> Iterator[None]:
    """Raises `UserError` with `message` if Keras cannot load the weights or the optimizer."""
    try:
        with warnings.catch_warnings():  # Keras only warns if it cannot load the optimizer
            warnings.filterwarnings("error", message="Skipping variable loading for optimizer")
            yield
    except (ValueError, UserWarning) as error:
        raise UserError(f"{message}: {' '.join(str(error).split())}") from None


def _load_weights(path: Path, model: Any) -> None:
    """Loads the weights and the optimizer state of a checkpoint into a compiled model.

    Extracts the weights file first, because loading it from within the zip archive is slow.
    """
    with (
        zipfile.ZipFile(path / _MODEL) as archive,
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


def verify_checkpoint(path: str | Path) -> int:
    """Returns the step of a checkpoint. Raises `UserError` if a file is missing or damaged."""
    path = Path(path)
    try:
        state = read_state(path)
        step = int(state["step"])
        damaged = sha256_of(path / _MODEL) != state["sha256"][_MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"checkpoint {path} is incomplete: {error}") from None
    if damaged:
        raise UserError(f"checkpoint {path} is damaged: the SHA-256 of {_MODEL} is wrong")
    return step


def average_checkpoints(
    paths: Sequence[str | Path],
    output: str | Path,
    previous: str | Path | None = None,
    tokenizer: str | None = None,
    newest: str | Path | None = None,
    average_last: int | None = None,
) -> None:
    """Writes a model whose weights are the mean of the weights of several checkpoints (§6.1).

    The mean is computed in float64. Weights of integers, such as counters, are those of the last
    path. The new model has no optimizer state. Its file is written atomically.

    Example:

    ```python
    average_checkpoints(run.checkpoints()[-5:], run.model_path)
    ```

    Args:
        paths: One or more checkpoint folders, all of the same model.
        output: The `.keras` file to write.
        previous: If `output` is already a `.keras` file that is not damaged, it is copied to this
            path. Defaults to None, which means no copy.
        tokenizer: The `Tokenizer.fingerprint` to store in `output`. `Run.model` raises an error if
            the run's tokenizer has another fingerprint. Defaults to None, which stores no
            fingerprint.
        newest: The newest checkpoint of the run, to store its hash in `output`. So
            `Run.has_current_model` knows later whether training went on. Defaults to None, which
            stores no hash.
        average_last: The setting `evaluation.average_last` of the run, to store it in `output`. So
            a resumed training knows whether the setting changed. Defaults to None, which stores
            nothing.

    Raises:
        UserError: If `paths` is empty, a checkpoint is damaged, or the models' weights differ in
            shape. If there are several checkpoints and the model is quantized or uses LoRA.
    """
    if not paths:
        raise UserError("there is no checkpoint to average")
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
        if [weight.shape for weight in weights] != [total.shape for total in totals]:
            raise UserError(f"{paths[0]} and {path} are checkpoints of different models")
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
            if tokenizer:
                archive.writestr(TOKENIZER_MEMBER, tokenizer)
            if newest:
                digest = read_state(Path(newest))["sha256"][_MODEL]
                archive.writestr(CHECKPOINT_MEMBER, digest)
            if average_last:
                archive.writestr(AVERAGE_LAST_MEMBER, str(average_last))
        if previous and is_keras_file(output):
            with atomic_write(previous) as copy:
                shutil.copyfile(output, copy)


def load_checkpoint_model(path: str | Path) -> Any:
    """Returns the model of a checkpoint, without the optimizer.

    If the optimizer keeps EMA weights, the model gets the EMA weights. Raises `UserError` if the
    checkpoint is incomplete or damaged, or has the format of an older release. Also raises it if
    the optimizer does not fit the loaded model, for example because a custom layer does not save
    which of its sublayers are frozen.
    """
    _, config = _check_loadable(Path(path))
    file = Path(path) / _MODEL
    with placeholder_weights():
        model = keras.saving.load_model(file, compile=False)
        if _has_averages(config):
            # In float32, the optimizer would lack the loss scale of mixed_float16.
            with (
                _complete_loading(f"the EMA weights of checkpoint {path} cannot be loaded"),
                loading_in_float32(active=False),
            ):
                compiled = keras.saving.load_model(file)
            compiled.optimizer.finalize_variable_values(compiled.trainable_variables)
            model.set_weights(compiled.get_weights())
    return model


def _check_loadable(path: Path) -> tuple[int, dict[str, Any]]:
    """Returns the step of a checkpoint and the configuration of its model."""
    step = verify_checkpoint(path)
    if read_state(path).get("format") != _FORMAT:
        raise UserError(
            f"checkpoint {path} was written by keras3-transformer 0.1.0.dev0 in an older format. "
            "Finish this run with that release, or start a new run. To fine-tune the model of a "
            "finished run, set training.initial_run in the new run"
        )
    return step, read_config(path / _MODEL)


def _has_averages(config: dict[str, Any]) -> bool:
    compiled = config.get("compile_config") or {}
    optimizer = compiled.get("optimizer", {}).get("config", {})
    inner = optimizer.get("inner_optimizer", {}).get("config", optimizer)
    return inner.get("use_ema", False)


def remove_unfinished(directory: str | Path) -> None:
    """Removes the remains of checkpoints that a killed process was writing, removing or loading."""
    step = f"step-{'[0-9]' * 8}"
    for pattern in (f".partial-{step}", f".removed-{step}", f"{step}/{_EXTRACTED}*"):
        for path in Path(directory).glob(pattern):
            shutil.rmtree(path)


def _remove(path: Path) -> None:
    """Renames a checkpoint, then removes it. So a folder named `step-...` is always complete."""
    hidden = path.with_name(f".removed-{path.name}")
    _rename(path, hidden)
    shutil.rmtree(hidden)


def _rename(path: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.replace(path, target)
