"""Writes event files for TensorBoard without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Writes scalars and texts to a new TensorBoard event file in `directory`.

    `first_step` is the first optimizer step of this file. If a run is resumed, older files can
    contain values of `first_step` or of later steps. TensorBoard hides these old values.
    """

    def __init__(self, directory: str | Path, first_step: int = 0) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((directory / name).open("wb"))
        self._write(file_version="brain.Event:2")
        self._write(step=first_step, session_log={"status": "START"})

    def report(self, step: int, values: Mapping[str, float | str]) -> None:
        """Writes the values of an optimizer step. `values` maps names to numbers or Markdown."""
        self._write(step=step, summary={"value": [_value(*item) for item in values.items()]})

    def write_hyperparameters(self, values: Mapping[str, bool | float | str]) -> None:
        """Writes names and values for the tab HParams, unless there are none."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        if values:
            self._write(summary=hparams_pb(dict(values)))

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._records.close()


def _value(tag: str, value: float | str) -> dict[str, Any]:
    if not isinstance(value, str):
        return {"tag": tag, "simple_value": value}
    tensor = {"dtype": "DT_STRING", "string_val": [value.encode()]}
    return {"tag": tag, "metadata": {"plugin_data": {"plugin_name": "text"}}, "tensor": tensor}
