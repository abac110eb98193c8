"""Writes files for TensorBoard without TensorFlow, which TensorBoard's own writer imports."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer._files import output_file, png, write_text


# tensorboardX 2.6 imports PyTorch, needs Pillow, and writes two runs of one second into one file.
class TensorBoardWriter(AbstractContextManager):
    """Writes scalars, texts and images to a new TensorBoard event file in `directory`.

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

    def report(self, step: int, values: Mapping[str, float | str | np.ndarray]) -> None:
        """Writes the values of an optimizer step, by their names.

        A value is a number, a text in Markdown, or an image, a uint8 array `(height, width, 3)`.
        """
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

    def __exit__(self, *_: object) -> None:
        self._records.close()


def _value(tag: str, value: float | str | np.ndarray) -> dict[str, Any]:
    if isinstance(value, str):
        plugin, shape, strings = "text", [], [value.encode()]
    elif isinstance(value, np.ndarray) and value.ndim:
        height, width, _ = value.shape
        plugin, shape = "images", [{"size": 3}]
        strings = [b"%d" % width, b"%d" % height, png(value)]
    else:
        return {"tag": tag, "simple_value": float(value)}
    tensor = {"dtype": "DT_STRING", "tensor_shape": {"dim": shape}, "string_val": strings}
    return {"tag": tag, "metadata": {"plugin_data": {"plugin_name": plugin}}, "tensor": tensor}


def write_projector(
    directory: str | Path, embeddings: Mapping[str, tuple[np.ndarray, Sequence[str]]]
) -> None:
    """Writes vectors and their words for TensorBoard's tab Projector.

    The tab shows the vectors of the last call in two or three dimensions, and the nearest
    neighbours of a word.

    Example:

    >>> write_projector("runs/mine/logs", {"words": (vectors, words)})

    Args:
        directory: The folder that TensorBoard shows, such as `Run.logs_dir`.
        embeddings: For each name, a float array `(N, D)` and N words.
    """
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    directory, config = Path(directory), ProjectorConfig()
    for name, (vectors, words) in embeddings.items():
        files = f"projector_{name}.tsv", f"projector_{name}_words.tsv"
        numbers = np.asarray(vectors, "float32").tolist()
        rows = ("\t".join(f"{number:.5g}" for number in vector) for vector in numbers)
        lines = (" ".join(word.split()) or repr(word) for word in words)
        for file, content in zip(files, (rows, lines), strict=True):
            with output_file(directory / file) as output:
                output.writelines(f"{line}\n" for line in content)
        config.embeddings.add(tensor_name=name, tensor_path=files[0], metadata_path=files[1])
    write_text(directory / "projector_config.pbtxt", text_format.MessageToString(config))
