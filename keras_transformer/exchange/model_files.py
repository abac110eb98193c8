"""Reads files of models without unpickling, and downloads those of the Hugging Face hub.

Each reader returns arrays by name, which are never larger than the file.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from keras_transformer._files import keras_home
from keras_transformer.errors import UserError

Arrays = dict[str, np.ndarray]
_MARIAN_FLOAT32, _MARIAN_INT8 = 0x404, 0x101
PREFIX = "hf://"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.bin")  # the first that exists
_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "README.md"),
    *("source.spm", "target.spm", "sentencepiece.model", "vocab.json", "target_vocab.json"),
    *("shared_vocabulary.json", "shared_vocabulary.txt", "source_vocabulary.json"),
    *("source_vocabulary.txt", "target_vocabulary.json", "target_vocabulary.txt"),
)


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turns the errors of a missing or damaged file into a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # NumPy, zipfile, json, safetensors, torch and Keras have their own
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        kind = "missing or not supported: " if isinstance(error, KeyError) else kind
        reason = " ".join(f"{kind}{error}".split())[:300]
        raise UserError(f"{path} cannot be imported: {reason}") from error


class Bytes:
    """The bytes of a mapped file, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, "u1", "r") if path.stat().st_size else np.zeros(0, "u1")
        self.offset = 0

    def take(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the next array. Raises `ValueError` if the file is too short for it."""
        end = self.offset + math.prod(shape) * np.dtype(dtype).itemsize
        if not self.offset <= end <= len(self._bytes):
            raise ValueError(f"it ends before an array of shape {shape}")
        self.offset, start = end, self.offset
        return self._bytes[start:end].view(dtype).reshape(shape)

    def numbers(self, format: str) -> tuple[int, ...]:
        """Unpacks the next little-endian numbers, such as "QQ"."""
        return struct.unpack(f"<{format}", self.text(struct.calcsize(f"<{format}")))

    def text(self, length: int) -> bytes:
        """Returns the next bytes."""
        return self.take("u1", (length,)).tobytes()


def read_safetensors(path: Path) -> Arrays:
    """Reads a safetensors file as float32."""
    import ml_dtypes as ml_dtypes  # NumPy knows bfloat16 by its name then

    with reading(path):
        return {name: x.astype("f4", copy=False) for name, x in load_file(path).items()}


def read_torch(path: Path) -> Arrays:
    """Reads a `pytorch_model.bin`, which is a pickle, with PyTorch's safe unpickler."""
    try:
        import torch
    except ImportError:
        raise UserError(f"{path} is a pickle: pip install 'keras3-transformer[torch]'") from None
    with reading(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}


def read_npz(path: Path) -> Arrays:
    """Reads an uncompressed `.npz` file, as Marian and `np.savez` write it."""
    with reading(path), np.load(path, allow_pickle=False) as file:
        if any(member.compress_type for member in file.zip.infolist()):
            raise ValueError("its arrays must not be compressed, see `np.savez`")
        return dict(file)


def read_marian_bin(path: Path) -> Arrays:
    """Reads a `.bin` file of Marian with float32 weights. It has the names of the `.npz` file."""
    with reading(path):
        file = Bytes(path)
        _, count = file.numbers("QQ")
        headers = file.take("<u8", (count, 4)).tolist()
        names = [file.text(header[0]).rstrip(b"\0").decode() for header in headers]
        shapes = [file.numbers(f"{header[2]}i") for header in headers]
        (padding,) = file.numbers("Q")
        file.offset += padding
        arrays = {}
        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
            is_settings = name.startswith("special:")
            if kind != (_MARIAN_INT8 if is_settings else _MARIAN_FLOAT32):
                raise ValueError(f"{name} must be of float32. Received: type {kind:#x} of Marian")
            end = file.offset + size
            arrays[name] = file.take("i1" if is_settings else "<f4", shape)
            file.offset = end
        return arrays


def in_order(path: Path, ids: Mapping[str, int]) -> list[str]:
    """Returns the pieces of a vocabulary file in the order of their ids."""
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != [*range(len(pieces))]:
        raise ValueError(f"{path.name} must have the ids from 0 to {len(pieces) - 1}")
    return pieces


def read_value(path: Path, missing: Any = None) -> Any:
    """Returns the object or list in a JSON file, or `missing` if there is no file."""
    if missing is not None and not path.is_file():
        return missing
    with reading(path):
        return json.loads(path.read_bytes())


def download(source: str, revision: str | None = None) -> Path:
    """Downloads a model such as "hf://org/name" once. The folder has the name of its revision.

    Raises an error, see `reading`, if huggingface_hub is missing, or there is no such model.
    """
    name = source.removeprefix(PREFIX)
    try:
        import huggingface_hub as hub
    except ImportError:
        raise ValueError(
            "it needs huggingface_hub: pip install 'keras3-transformer[hub]'"
        ) from None
    cache = keras_home() / "keras_transformer" / "hub"
    found: dict[str, Path] = {}
    for file in (*_WEIGHTS, *_FILES):
        if file in _WEIGHTS and found:
            continue
        try:
            kept: Any = hub.try_to_load_from_cache(name, file, cache, revision)
            if kept is None:
                kept = hub.hf_hub_download(name, file, revision=revision, cache_dir=cache)
        except hub.errors.EntryNotFoundError:
            continue
        if isinstance(kept, str):
            found[file] = Path(kept)
    if not found:
        raise ValueError("it has none of the files of a translation model")
    return next(iter(found.values())).parent
