"""Reads models: a .keras file, the texts that the package keeps in its archive, a checkpoint."""

import traceback
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.compile_function import use_compilation_cache
from keras_transformer._files import damaged_keras_file, read_config, sha256_of
from keras_transformer.errors import UserError
from keras_transformer.layers.saving import placeholder_weights
from keras_transformer.models.base import loading_in_float32
from keras_transformer.runs.checkpoints import read_state

# Files in the archive model.keras: the SHA-256 of the tokenizer, and of the model in the checkpoint
# that was the newest when the archive was written, and evaluation.average_last of the recipe at
# that time. Keras ignores these files.
TOKENIZER_MEMBER, CHECKPOINT_MEMBER = "tokenizer.sha256", "checkpoint.sha256"
AVERAGE_LAST_MEMBER = "average_last"
_MOST_MEMBER_BYTES = 1024

# The model in the folder of a checkpoint, and the version of such a folder.
CHECKPOINT_MODEL, CHECKPOINT_FORMAT = "model.keras", 2


def load_model(path: str | Path) -> Any:
    """Loads a model of this package from a .keras file.

    Raises:
        UserError: If the file is missing or damaged, or if the model's configuration is too large.
    """
    use_compilation_cache()
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no model {path}: has the run been trained?")
    read_config(path)
    try:
        with placeholder_weights():
            return keras.saving.load_model(path, compile=False)
    except Exception as error:  # zipfile, json, h5py and Keras raise different errors
        # The frames hold an open h5py file, which would crash the process at its end.
        traceback.clear_frames(error.__traceback__)
        raise damaged_keras_file(path, error) from error


def read_member(path: Path, name: str) -> str | None:
    """Returns a text in a .keras file, or None if file or text is missing or damaged."""
    with suppress(Exception):  # zipfile and zlib raise different errors
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            return file.read(_MOST_MEMBER_BYTES).decode()
    return None


def load_checkpoint_model(folder: str | Path) -> Any:
    """Returns the model of a checkpoint, without the optimizer.

    If the optimizer keeps EMA weights, the model gets the EMA weights.

    Raises:
        UserError: If the checkpoint is incomplete or damaged. If the optimizer does not fit the
            loaded model, for example because a custom layer does not save which of its sublayers
            are frozen.
    """
    verify_checkpoint(folder)
    file = Path(folder) / CHECKPOINT_MODEL
    compile_config = read_config(file).get("compile_config") or {}
    with placeholder_weights():
        model = keras.saving.load_model(file, compile=False)
        if _keeps_ema(compile_config):
            # In float32, the optimizer would lack the loss scale of mixed_float16.
            with (
                loading_optimizer(f"the EMA weights of checkpoint {folder} cannot be loaded"),
                loading_in_float32(active=False),
            ):
                compiled = keras.saving.load_model(file)
            compiled.optimizer.finalize_variable_values(compiled.trainable_variables)
            model.set_weights(compiled.get_weights())
    return model


def verify_checkpoint(folder: str | Path) -> int:
    """Returns the step of a checkpoint. Raises `UserError` if a file is missing or damaged."""
    folder = Path(folder)
    try:
        state = read_state(folder)
        step, version = int(state["step"]), state["format"]
        damaged = sha256_of(folder / CHECKPOINT_MODEL) != state["sha256"][CHECKPOINT_MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"checkpoint {folder} is incomplete: {error}") from None
    if damaged:
        raise UserError(f"checkpoint {folder} is damaged: the SHA-256 of the model is wrong")
    if version != CHECKPOINT_FORMAT:
        raise UserError(
            f"checkpoint {folder} must have the format {CHECKPOINT_FORMAT}. "
            f"Received: format={version}"
        )
    return step


@contextmanager
def loading_optimizer(message: str) -> Iterator[None]:
    """Raises `UserError` with `message` if Keras cannot load the weights or the optimizer."""
    try:
        with warnings.catch_warnings():  # Keras only warns if it cannot load the optimizer
            warnings.filterwarnings("error", message="Skipping variable loading for optimizer")
            yield
    except (ValueError, UserWarning) as error:
        raise UserError(f"{message}: {' '.join(str(error).split())}") from None


def _keeps_ema(compile_config: dict[str, Any]) -> bool:
    optimizer = compile_config.get("optimizer", {}).get("config", {})
    inner = optimizer.get("inner_optimizer", {}).get("config", optimizer)
    return inner.get("use_ema", False)
