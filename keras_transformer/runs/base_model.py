"""Leaves out of a `.keras` file the weights that it shares with the model it was made of."""

import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_transformer._files import read_json_members, sha256_of
from keras_transformer.errors import UserError

_MEMBER, _WEIGHTS = "base.json", "model.weights.h5"


def leave_out(path: Path, base: Path) -> None:
    """Rewrites a file without the weights that `base` has, too, and with the hash of `base`.

    Kernels with LoRA are those of `base`, and their sums with the adapters are left out.
    """
    shared: dict[str, str] = {}
    with _unpacked(path) as file, completed(base) as whole, _unpacked(whole) as of_base:
        kept = file.with_suffix(".kept")
        with h5py.File(file) as old, h5py.File(of_base) as source, h5py.File(kept, "w") as new:

            def visit(name: str, item: Any) -> None:
                group, _, last = name.rpartition("/")
                if isinstance(item, h5py.Group):
                    new.require_group(name).attrs.update(item.attrs)
                    return
                known = f"{group}/0" if last == "kernel" else name
                is_sum = is_lora_sum(name, old)
                if known in source and (is_sum or np.array_equal(source[known], item)):
                    shared[name] = known
                else:
                    old.copy(item, new[group], last)

            old.visititems(visit)
        content = {"model": str(base.absolute()), "sha256": sha256_of(base), "weights": shared}
        _repack(path, kept, path, {_MEMBER: json.dumps(content)})


def is_lora_sum(name: str, weights: h5py.File) -> bool:
    """Returns whether a weight is the sum of a kernel and its adapter, which are there, too."""
    group, _, last = name.rpartition("/")
    return last == "0" and f"{group}/lora_kernel_a" in weights


@contextmanager
def completed(path: str | Path) -> Iterator[Path]:
    """Yields a file with all weights, for as long as the context lasts: `path` if it has them.

    Raises `UserError` if weights are those of another file that is missing or has changed.
    """
    path = Path(path)
    if (content := read_json_members(path).get(_MEMBER)) is None:
        yield path
        return
    check_base(path, base := Path(content["model"]))
    with _unpacked(path) as file, completed(base) as whole, _unpacked(whole) as of_base:
        with h5py.File(file, "r+") as new, h5py.File(of_base) as source:
            for name, known in content["weights"].items():
                group, _, last = name.rpartition("/")
                source.copy(known, new[group], last)
        full = file.with_name(path.name)
        _repack(path, file, full, {})
        yield full


def check_base(path: Path, base: Path) -> None:
    """Raises `UserError` unless a file has only the weights that differ from those of `base`."""
    content = read_json_members(path).get(_MEMBER)
    if content is None or not base.is_file() or sha256_of(base) != content["sha256"]:
        found = "another file" if base.is_file() else "no such file"
        raise UserError(
            f"{path} must have only the weights that differ from those of {base}, which must be "
            f"as it was. Received: {found if content else 'all weights'}"
        )


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yields the file of the weights in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        yield Path(archive.extract(_WEIGHTS, folder))


def _repack(path: Path, weights: Path, output: Path, members: dict[str, str]) -> None:
    """Writes the members of the archive `path` with other weights."""
    with zipfile.ZipFile(path) as archive:
        names = [x for x in archive.namelist() if x not in (_WEIGHTS, _MEMBER)]
        contents: dict[str, bytes | str] = {name: archive.read(name) for name in names}
    with zipfile.ZipFile(output, "w") as archive:
        for name, content in (contents | members).items():
            archive.writestr(name, content)
        archive.write(weights, _WEIGHTS)
