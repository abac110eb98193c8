"""Reads the numbers in TensorBoard event files, without TensorFlow and NumPy."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import UserError


def logged_scalars(directory: str | Path, prefix: str = "") -> dict[str, dict[int, float]]:
    """Returns the numbers in the event files of a folder, by name and optimizer step.

    If a run was resumed from a checkpoint, the numbers of the steps that it repeated are those of
    the last time, as in TensorBoard.

    Args:
        directory: The folder of the event files, such as `Run.logs_dir`.
        prefix: Only names with this prefix are read. Defaults to "".

    Raises:
        UserError: If a file is damaged. A file that ends within a record is not damaged.
    """
    found: dict[str, dict[int, float]] = {}
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        for event in _events(path):
            if event.HasField("session_log"):
                for values in found.values():
                    for step in [step for step in values if step >= event.step]:
                        del values[step]
            for value in event.summary.value:
                if value.tag.startswith(prefix) and value.HasField("simple_value"):
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return {name: dict(sorted(values.items())) for name, values in found.items() if values}


def _events(path: Path) -> Iterator[Any]:
    """Yields the events in a file.

    A record is its length in 8 bytes, a checksum in 4 bytes, an `Event` and a checksum in 4 bytes.
    The last record may be incomplete.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    size = path.stat().st_size
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            record = file.read(min(length, size))
            if len(record) < length or len(file.read(4)) < 4:
                return
            try:
                yield Event.FromString(record)
            except DecodeError as error:
                raise UserError(f"{path} is damaged: {error}") from None
