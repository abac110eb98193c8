"""Reads and writes files of models without unpickling: safetensors, Marian's `.npz` and `.bin`.

Each reader returns arrays by name. Sizes are checked against the size of the file before memory is
taken. The arrays of uncompressed formats are views of the mapped file.
"""

import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import read_json
from keras_transformer.errors import UserError

Arrays = dict[str, np.ndarray]
_MOST_VOCABULARY_BYTES = 1 << 28
_MOST_HEADER_BYTES = 16 * 1024 * 1024
# bfloat16 is read as uint16, the upper half of a float32.
_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MARIAN_FLOAT32, _MARIAN_INT8 = 0x404, 0x101


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the errors of a damaged file into a `UserError` that names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, struct.error, OverflowError) as error:
        raise UserError(f"{path} is damaged, or not what its name says: {error}") from error
    except (OSError, zipfile.BadZipFile, NotImplementedError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


class Bytes:
    """The bytes of a mapped file, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, "u1", "r") if path.stat().st_size else np.zeros(0, "u1")
        self.offset = 0

    def take(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the next array. Raises `ValueError` if the file is too short for it."""
        if any(size < 0 for size in shape):
            raise ValueError(f"negative size in the shape {shape}")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        end = self.offset + count * np.dtype(dtype).itemsize
        if end > len(self._bytes):
            raise ValueError(f"it ends before an array of shape {shape}")
        self.offset, start = end, self.offset
        return self._bytes[start:end].view(dtype).reshape(shape)

    def numbers(self, format: str) -> tuple[int, ...]:
        """Unpacks the next little-endian numbers, such as "QQ"."""
        return struct.unpack(f"<{format}", self.text(struct.calcsize(f"<{format}")))

    def text(self, length: int) -> bytes:
        """Returns the next bytes."""
        return self.take("u1", (length,)).tobytes()


def as_float32(array: np.ndarray, is_bfloat16: bool = False) -> np.ndarray:
    """Returns floats as float32. bfloat16 has the dtype uint16."""
    if is_bfloat16:
        return (array.astype("u4") << 16).view("f4")
    return array.astype("f4", copy=False)


def read_safetensors(path: Path) -> Arrays:
    """Reads the floats of a safetensors file as float32."""
    with reading(path):
        file = Bytes(path)
        (length,) = file.numbers("Q")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {length:,} bytes")
        header = json.loads(file.text(length))
        header.pop("__metadata__", None)
        start, arrays = file.offset, {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype, shape = entry["dtype"], tuple(map(int, entry["shape"]))
            if dtype not in _SAFETENSORS:
                raise ValueError(f"{name} must be of floats. Received: {dtype}")
            file.offset = start + int(begin)
            array = file.take(_SAFETENSORS[dtype], shape)
            if begin < 0 or file.offset != start + end:
                raise ValueError(f"{name} has the shape {shape} and {end - begin} bytes")
            arrays[name] = as_float32(array, dtype == "BF16")
        return arrays


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes float32 arrays."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + 4 * array.size
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").data)


def read_torch(path: Path) -> Arrays:
    """Reads a `pytorch_model.bin`, which is a pickle, with PyTorch's safe unpickler."""
    if not find_spec("torch"):
        raise UserError(
            f"{path} is a pickle, which is read only with PyTorch: pip install "
            "'keras3-transformer[torch]', or convert the model to model.safetensors"
        )
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # pickle, zipfile and torch raise different errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is no file of weights only: {reason}") from error


def read_npz(path: Path) -> Arrays:
    """Reads an uncompressed `.npz` file, as Marian and `np.savez` write it."""
    arrays = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("its arrays must not be compressed, see `np.savez`")
            with archive.open(member) as file:
                shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
                if dtype.hasobject:
                    raise ValueError(f"{member.filename} holds Python objects")
                array = np.frombuffer(file.read(), dtype)
            array = array.reshape(shape, order="F" if is_fortran else "C")
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


def read_marian_bin(path: Path) -> Arrays:
    """Reads a `.bin` file of Marian with float32 weights. It has the names of the `.npz` file."""
    with reading(path):
        file = Bytes(path)
        version, count = file.numbers("QQ")
        if version != 1:
            raise ValueError(f"its version must be 1. Received: {version}")
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
            if file.offset > end:
                raise ValueError(f"{name} has the shape {shape} and {size} bytes")
            file.offset = end
        return arrays


def in_order(path: Path, ids: Mapping[str, int]) -> list[str]:
    """Returns the pieces of a vocabulary file in the order of their ids."""
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != [*range(len(pieces))]:
        raise UserError(f"{path} must map pieces to the ids from 0 to {len(pieces) - 1}")
    return pieces


def read_bytes(path: Path) -> bytes:
    """Returns the content of a SentencePiece model."""
    with reading(path):
        if path.stat().st_size > _MOST_VOCABULARY_BYTES:
            raise ValueError("it is too large for a SentencePiece model")
        return path.read_bytes()


def read_value(path: Path, most: int = _MOST_VOCABULARY_BYTES) -> Any:
    """Returns the value in a JSON file."""
    with reading(path), path.open("rb") as file:
        return read_json(file, most)


def read_object(path: Path, missing: Any = None) -> dict[str, Any]:
    """Returns the object in a JSON file, or `missing` if there is no file and it is not None."""
    if missing is not None and not path.is_file():
        return missing
    found = read_value(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold an object. Received: {found!r:.60}")
    return found
