"""Loads the models of runs and checkpoints."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.compile_function import use_compilation_cache
from keras_transformer._files import NUMBERS_PER_BYTE, damaged_keras_file, read_json_members
from keras_transformer.errors import UserError
from keras_transformer.layers.saving import check_finite, placeholder_weights
from keras_transformer.models.base import loading_in_float32
from keras_transformer.runs.base_model import completed
from keras_transformer.runs.checkpoints import CHECKPOINT_MODEL, verify_checkpoint


def load_model(path: str | Path) -> Any:
    """Loads a model of this package from a .keras file.

    Raises `UserError` if the file is missing or damaged, or if its configuration is too large.
    """
    use_compilation_cache()
    try:
        with completed(path) as file:
            with placeholder_weights(NUMBERS_PER_BYTE * file.stat().st_size):
                model = keras.saving.load_model(file, compile=False)
    except UserError:
        raise
    except Exception as error:  # zipfile, json, h5py and Keras raise different errors
        # The frames hold an open h5py file, which would crash the process at its end.
        traceback.clear_frames(error.__traceback__)
        raise damaged_keras_file(path, error) from error
    check_finite(model, path)
    return model


def load_checkpoint_model(folder: str | Path) -> Any:
    """Returns the model of a checkpoint, without the optimizer.

    If the optimizer keeps EMA weights, the model gets the EMA weights.

    Raises `UserError` if the checkpoint is damaged, or if the optimizer does not fit the model, for
    example because a custom layer does not save which of its sublayers are frozen.
    """
    verify_checkpoint(folder)
    file = Path(folder) / CHECKPOINT_MODEL
    compiled = read_json_members(file)["config.json"].get("compile_config")
    optimizer = (compiled or {}).get("optimizer", {})
    config = optimizer.get("config", {})
    config = config.get("inner_optimizer", {}).get("config", config)
    model = load_model(file)
    if config.get("use_ema"):
        # In float32, the optimizer would lack the loss scale of mixed_float16.
        with (
            placeholder_weights(),
            loading_optimizer(f"the EMA weights of checkpoint {folder} cannot be loaded"),
            loading_in_float32(active=False),
        ):
            with completed(file) as whole:
                compiled = keras.saving.load_model(whole)
        compiled.optimizer.finalize_variable_values(compiled.trainable_variables)
        model.set_weights(compiled.get_weights())
    return model


@contextmanager
def loading_optimizer(message: str) -> Iterator[None]:
    """Raises `UserError` with `message` if Keras cannot load the weights or the optimizer."""
    try:
        with warnings.catch_warnings():  # Keras only warns if it cannot load the optimizer
            warnings.filterwarnings("error", message="Skipping variable loading for optimizer")
            yield
    except (ValueError, UserWarning) as error:
        raise UserError(f"{message}: {' '.join(str(error).split())}") from None
