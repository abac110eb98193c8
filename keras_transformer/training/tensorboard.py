"""TensorBoard's event files, written without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Scalars and texts for TensorBoard, in one event file a process.

    Speaks TensorBoard's own record format, so that TensorFlow is never loaded. A run that is
    resumed starts a new file, which hides what the stopped process wrote beyond `first_step`.

    Example:

    ```python
    with TensorBoardWriter("logs") as writer:
        writer.report(1, {"loss": 5.0, "learning_rate": 1e-4})
    ```

    Args:
        directory: Folder of the event files, made if missing.
        first_step: Integer, the first optimizer step that will be reported.
    """

    def __init__(self, directory: str | Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((directory / name).open("wb"))
        self._write(file_version="brain.Event:2")
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def report(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write scalars and texts, in Markdown, of one optimizer step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            self._text(tag, value)
            if isinstance(value, str)
            else Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
        ]
        self._write(step=step, summary=Summary(value=scalars))

    def _text(self, tag: str, text: str) -> Any:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        return Summary.Value(tag=tag, metadata=plugin, tensor=tensor)

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
