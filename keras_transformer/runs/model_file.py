"""Reads .keras files: the model, and the texts that the package keeps beside it in the archive."""

import traceback
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_transformer._files import damaged_keras_file, read_config
from keras_transformer.errors import UserError

# Files in the archive model.keras: the SHA-256 of the tokenizer, and of the model in the checkpoint
# that was the newest when the archive was written, and evaluation.average_last of the recipe at
# that time. Keras ignores these files.
TOKENIZER_MEMBER, CHECKPOINT_MEMBER = "tokenizer.sha256", "checkpoint.sha256"
AVERAGE_LAST_MEMBER = "average_last"
_MOST_MEMBER_BYTES = 1024


def load_model(path: str | Path) -> Any:
    """Loads a model of this package from a .keras file.

    Raises:
        UserError: If the file is missing or damaged, or if the model's configuration is too large.
    """
    import keras

    from keras_transformer._backend.compilation_cache import use_compilation_cache
    from keras_transformer.layers.placeholder_weights import placeholder_weights

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
