"""Reads the files of checkpoints, and the numbers that a training has logged."""

import math
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_transformer._files import check_sha256, read_json
from keras_transformer.errors import UserError

# The files in the folder of a checkpoint, and the version of such a folder.
CHECKPOINT_MODEL, STATE, CHECKPOINT_FORMAT = "model.keras", "state.json", 2

# Files in the archive model.keras: the SHA-256 of the tokenizer, and of the model in the checkpoint
# that was the newest when the archive was written, and evaluation.average_last of the recipe at
# that time. Keras ignores these files.
TOKENIZER_MEMBER, CHECKPOINT_MEMBER = "tokenizer.sha256", "checkpoint.sha256"
AVERAGE_LAST_MEMBER = "average_last"


def read_member(path: Path, name: str) -> str | None:
    """Returns a text in a .keras file, or None if file or text is missing or damaged."""
    with suppress(Exception):  # zipfile and zlib raise different errors
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            return file.read(1024).decode()
    return None


def write_members(path: Path, members: Mapping[str, str]) -> None:
    """Adds texts to a .keras file, by their names."""
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def checkpoint_folders(directory: str | Path) -> list[Path]:
    """Returns the folders named `step-` followed by eight digits, oldest first."""
    return sorted(x for x in Path(directory).glob(f"step-{'[0-9]' * 8}") if x.is_dir())


def checkpoint_step(path: Path) -> int:
    """Returns the optimizer step in the name of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def verify_checkpoint(folder: str | Path) -> int:
    """Returns the step of a checkpoint. Raises `UserError` if a file is missing or damaged."""
    folder = Path(folder)
    try:
        state = read_json(folder / STATE)
        if (version := state["format"]) != CHECKPOINT_FORMAT:
            raise ValueError(f"it must have the format {CHECKPOINT_FORMAT}. Received: {version}")
        digest = state["sha256"][CHECKPOINT_MODEL]
        check_sha256(folder / CHECKPOINT_MODEL, digest, CHECKPOINT_MODEL)
        return int(state["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = "Remove it to continue without it"
        raise UserError(f"checkpoint {folder} cannot be loaded: {error}. {advice}") from None


class ValidationHistory:
    """Stores the validation losses of a run, with the optimizer step of each loss.

    Each checkpoint contains all validation losses so far, so a resumed run knows them. Early
    stopping uses the loss, not BLEU. On a few validation sentences, BLEU differences between
    checkpoints are mostly noise.
    """

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.losses = dict(losses or {})

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        if "validation/loss" in values:
            self.losses[step] = values["validation/loss"]

    def best(self, count: int) -> list[int]:
        """Returns the steps with the `count` lowest losses, sorted by step.

        If losses are equal, prefers the earlier steps.
        """
        losses = self.losses.items()
        ranks = sorted((math.inf if math.isnan(loss) else loss, step) for step, loss in losses)
        return sorted(step for _, step in ranks[:count])

    def is_over(self, patience: int | None) -> bool:
        """Returns whether at least `patience` losses came after the lowest loss."""
        if patience is None or not self.losses:
            return False
        (best,) = self.best(1)
        return sum(step > best for step in self.losses) >= patience


def load_history(path: str | Path) -> ValidationHistory:
    """Reads the validation losses of all checkpoints so far from the newest checkpoint.

    Raises `UserError` if the checkpoint's `state.json` is missing or damaged.
    """
    try:
        losses = read_json(Path(path) / STATE).get("validation_losses", {})
        return ValidationHistory({int(step): float(loss) for step, loss in losses.items()})
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {path} cannot be loaded: {error}") from None


def best_checkpoints(paths: Sequence[Path], history: ValidationHistory, count: int) -> list[Path]:
    """Returns the `count` checkpoints among `paths` with the lowest losses, sorted by step."""
    found = {checkpoint_step(path): path for path in paths}
    losses = {step: loss for step, loss in history.losses.items() if step in found}
    return [found[step] for step in ValidationHistory(losses).best(count)]


def logged_scalars(directory: str | Path, prefix: str = "") -> dict[str, dict[int, float]]:
    """Returns the numbers in the event files of a folder, by name and optimizer step.

    Reads the names that begin with `prefix`. If a run was resumed from a checkpoint, the numbers of
    the steps that it repeated are those of the last time, as in TensorBoard. A file may end within
    a record. Raises `UserError` if it is damaged.
    """
    found: dict[str, dict[int, float]] = {}
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        for event in _events(path):
            if event.HasField("session_log"):
                for name, values in found.items():
                    found[name] = {step: x for step, x in values.items() if step < event.step}
            for value in event.summary.value:
                if value.tag.startswith(prefix) and value.HasField("simple_value"):
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return {name: dict(sorted(values.items())) for name, values in found.items() if values}


def _events(path: Path) -> Iterator[Any]:
    """Yields the events in a file, without TensorFlow, which TensorBoard's own reader imports.

    A record is its length in 8 bytes, a checksum in 4 bytes, an `Event` and a checksum in 4 bytes.
    The last record may be incomplete.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    size = path.stat().st_size
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            length = min(struct.unpack("<Q", head[:8])[0] + 4, size)
            if len(record := file.read(length)) < length:
                return
            try:
                yield Event.FromString(record[:-4])
            except DecodeError as error:
                raise UserError(f"{path} is damaged: {error}") from None
