"""Reads files of models without unpickling, and downloads those of the Hugging Face hub.

Each reader returns arrays by name, which are never larger than the file.
"""

import json
import math
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_transformer._files import (
    MOST_BYTES,
    NUMBERS_PER_BYTE,
    keras_home,
    open_regular,
    read_json,
)
from keras_transformer.errors import UserError, imported

Arrays = dict[str, np.ndarray]
Item = TypeVar("Item")
_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MARIAN_TYPES = {0x404: "<f4", 0x101: "i1"}
_INTGEMM8 = 0x10001, 0x4101  # 8-bit matrices of Marian, and of the fork of Bergamot and Firefox
_MARIAN_UNIT = 256  # Marian rounds the bytes of an array up to a multiple.
PREFIX = "hf://"
INDEX = ".index.json"  # after the name of a file: the list of the shards that it consists of
_WEIGHTS = (  # the first that exists
    *("model.safetensors", f"model.safetensors{INDEX}"),
    *("pytorch_model.bin", f"pytorch_model.bin{INDEX}", "model.bin"),
)
_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "README.md"),
    *("source.spm", "target.spm", "sentencepiece.model", "vocab.json", "target_vocab.json"),
    *("sentencepiece.bpe.model", "tokenizer.json"),
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


def unique(pairs: Iterable[tuple[str, Item]]) -> dict[str, Item]:
    """Returns a dictionary. Raises `ValueError` if a name occurs twice."""
    found: dict[str, Item] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has {name} twice")
        found[name] = value
    return found


def check_count(path: Path, numbers: int) -> None:
    """Raises `ValueError` if a file claims more numbers than its bytes can stand for."""
    if numbers > (most := NUMBERS_PER_BYTE * path.stat().st_size):
        raise ValueError(f"a file of its size has at most {most:,} numbers. Received: {numbers:,}")


class Bytes:
    """The bytes of a mapped file, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, "u1", "r") if path.stat().st_size else np.zeros(0, "u1")
        self.offset = 0

    def take(
        self, dtype: str, shape: Sequence[int], size: int | None = None, unit: int = 1
    ) -> np.ndarray:
        """Returns the next array, whose `size` in bytes may be rounded up to a multiple of `unit`.

        Raises `ValueError` if the file is too short for it, or claims another size.
        """
        needed = math.prod(shape) * np.dtype(dtype).itemsize
        size = needed if size is None else size
        start, self.offset = self.offset, self.offset + size
        is_size = size in (needed, -(-needed // unit) * unit)
        self._check(is_size and self.offset <= len(self._bytes))
        return self._bytes[start : start + needed].view(dtype).reshape(shape)

    def _check(self, fits: bool) -> None:
        if not fits:
            raise ValueError("the shapes of its arrays do not fit the bytes of the file")

    def numbers(self, format: str) -> tuple[int, ...]:
        """Unpacks the next little-endian numbers, such as "QQ"."""
        return struct.unpack(f"<{format}", self.text(struct.calcsize(f"<{format}")))

    def text(self, length: int) -> bytes:
        """Returns the next bytes."""
        return self.take("u1", (length,)).tobytes()

    def finish(self) -> None:
        """Raises `ValueError` if bytes are left."""
        self._check(self.offset == len(self._bytes))


def as_float32(bfloat16: np.ndarray) -> np.ndarray:
    """Converts bits of bfloat16, uint16, to float32."""
    return (bfloat16.astype("u4") << 16).view("f4")


def read_safetensors(path: Path) -> Arrays:
    """Reads a safetensors file of floats."""
    with reading(path):
        file = Bytes(path)
        (length,) = file.numbers("Q")
        text = file.text(min(length, MOST_BYTES))
        header = json.loads(text, object_pairs_hook=unique)
        header.pop("__metadata__", None)
        start, arrays = file.offset, {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, size = entry["dtype"], start + entry["data_offsets"][1] - file.offset
            value = file.take(_SAFETENSORS[dtype], entry["shape"], size)
            arrays[name] = as_float32(value) if dtype == "BF16" else value
        file.finish()
        return arrays


def read_torch(path: Path) -> Arrays:
    """Reads a `pytorch_model.bin`, which is a pickle, with PyTorch's safe unpickler."""
    torch = imported("torch", "torch", f"{path} is a pickle, which needs")
    with reading(path), open_regular(path) as file:
        is_mapped = zipfile.is_zipfile(path)
        if is_mapped:
            _check_members(path)
        given = str(path) if is_mapped else file
        state = torch.load(given, map_location="cpu", weights_only=True, mmap=is_mapped)
        parts = [
            name
            for name, x in state.items()
            if not x.is_contiguous() or x.nbytes != x.untyped_storage().nbytes()
        ]
        if parts:
            raise ValueError(f"each tensor must be all of its storage. Received: {parts[:8]}")
        halves = {name: x.float() if x.dtype == torch.bfloat16 else x for name, x in state.items()}
        return {name: x.numpy() for name, x in halves.items()}


def read_npz(path: Path) -> Arrays:
    """Reads an `.npz` file, as Marian and `np.savez` write it."""
    with reading(path), open_regular(path) as raw:
        _check_members(path)
        with np.load(raw, allow_pickle=False) as file:
            return unique((name, file[name]) for name in file.files)


def _check_members(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        sizes = unique((x.filename, x.file_size) for x in archive.infolist())
        check_count(path, sum(sizes.values()))
        if name := archive.testzip():  # PyTorch does not look at the checksums.
            raise ValueError(f"{name} is damaged")


def read_marian_bin(path: Path) -> Arrays:
    """Reads a `.bin` file of Marian. It has the names of the `.npz` file.

    The weights are float32, or 8-bit numbers with one factor a matrix, which become float32.
    """
    with reading(path):
        file = Bytes(path)
        _, count = file.numbers("QQ")
        headers = file.take("<u8", (count, 4)).tolist()
        names = [file.text(header[0]).rstrip(b"\0").decode() for header in headers]
        shapes = [file.numbers(f"{header[2]}i") for header in headers]
        (padding,) = file.numbers("Q")
        file.offset += padding
        arrays = []
        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
            if kind in _INTGEMM8:
                numbers = file.take("i1", (math.prod(shape) + 4,), size, _MARIAN_UNIT)
                value = numbers[:-4] / numbers[-4:].view("<f4")
                # Matrices are transposed, but the rows of the fork's embeddings are not.
                is_table = name.endswith("Wemb")
                value = value.reshape(shape) if is_table else value.reshape(shape[::-1]).T
            else:
                value = file.take(_MARIAN_TYPES[kind], shape, size, _MARIAN_UNIT)
            arrays.append((name, value))
        file.finish()
        return unique(arrays)


def in_order(path: Path, ids: Mapping[str, int]) -> list[str]:
    """Returns the pieces of a vocabulary file in the order of their ids."""
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != [*range(len(pieces))]:
        raise ValueError(f"{path.name} must have the ids from 0 to {len(pieces) - 1}")
    return pieces


def read_value(path: Path, missing: Any = None, most: int = MOST_BYTES) -> Any:
    """Returns the object or list in a JSON file, or `missing` if there is no file."""
    if missing is not None and not path.exists():
        return missing
    with reading(path):
        return read_json(path, most)


def download(source: str, revision: str | None = None) -> Path:
    """Downloads a model such as "hf://org/name" once. The folder has the name of its revision.

    Raises an error, see `reading`, if huggingface_hub is missing, or there is no such model.
    """
    name = source.removeprefix(PREFIX)
    hub = imported("huggingface_hub", "hub", f"{source} needs")
    cache = keras_home() / "keras_transformer" / "hub"

    def get(file: str) -> Path | None:
        kept: Any = hub.try_to_load_from_cache(name, file, cache, revision)
        try:
            if kept is None:
                kept = hub.hf_hub_download(name, file, revision=revision, cache_dir=cache)
        except hub.errors.EntryNotFoundError as error:
            is_local = isinstance(error, hub.errors.LocalEntryNotFoundError)
            reason = error.__cause__ or error if is_local else error
            if getattr(getattr(reason, "response", None), "status_code", None) != 404:
                raise ValueError(f"the hub does not tell whether it has {file}: {reason}") from None
        return Path(kept) if isinstance(kept, str) else None  # else it is known to be missing

    weights = next(filter(None, map(get, _WEIGHTS)), None)
    if weights is None:
        raise ValueError("it has none of the files of a translation model")
    for file in (*(x.name for x in shards(weights)), *_FILES):
        get(file)
    return weights.parent


def shards(path: Path) -> list[Path]:
    """Returns the files that the index of a model's weights names, or the file itself."""
    if not path.name.endswith(INDEX):
        return [path]
    names = {Path(name).name for name in read_value(path)["weight_map"].values()}
    return [path.with_name(name) for name in sorted(names)]
