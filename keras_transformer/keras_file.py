"""What a `.keras` file says of its model, and whether it is safe to let Keras read the file."""

import copy
import zipfile
from pathlib import Path
from typing import Any

from keras_transformer._files import read_json
from keras_transformer.errors import UserError

# A thousand Keras layers take about a mebibyte; the configuration of a Transformer is a kilobyte.
_MOST_JSON_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the configuration of a `.keras` file, and refuse a file that is made to fill the memory.

    Call it before `keras.saving.load_model`, which parses `config.json` whatever its size and
    believes the sizes that the archive's directory states. Here `config.json` and `metadata.json`
    have at most 4 MiB each, and no member of the archive is larger than the directory states.

    Args:
        path: A `.keras` file.

    Returns:
        What `config.json` holds.

    Raises:
        UserError: If the file is damaged or a member is too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_size(archive, member)
            with archive.open("config.json") as file:
                config = read_json(file, _MOST_JSON_BYTES)
        if not isinstance(config, dict):
            raise ValueError("config.json must be a JSON object")
    except Exception as error:  # zipfile, zlib, struct and json each have their own for damage
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is not a complete Keras model file: {reason}") from error
    return config


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name, size = member.filename, member.file_size
    if name in ("config.json", "metadata.json") and size > _MOST_JSON_BYTES:
        raise ValueError(f"{name} must have at most {_MOST_JSON_BYTES:,} bytes. Received: {size:,}")
    if member.compress_type == zipfile.ZIP_STORED:
        return  # as Keras writes it; nothing to unpack
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(
            f"{name} must be stored or deflated"
        )  # zipfile cannot unpack less than all
    unbounded = copy.copy(member)
    unbounded.file_size = size + 1  # zipfile reads no further than this
    del unbounded.CRC  # that of the stated bytes; Keras compares it
    with archive.open(unbounded) as file:
        if sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b"")) > size:
            raise ValueError(f"{name} must have the {size:,} bytes that are stated. Received: more")
