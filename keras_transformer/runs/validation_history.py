"""Reads the validation losses and the state of checkpoints, without the slow import of Keras."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import read_json
from keras_transformer.errors import UserError
from keras_transformer.runs.checkpoints import checkpoint_step

STATE = "state.json"
_MOST_STATE_BYTES = 16 * 1024 * 1024  # each validation loss takes about 40 bytes


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

        def rank(step: int) -> tuple[float, int]:
            loss = self.losses[step]
            return (math.inf if math.isnan(loss) else loss), step

        return sorted(sorted(self.losses, key=rank)[:count])

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
        losses = read_state(Path(path)).get("validation_losses", {})
        return ValidationHistory({int(step): float(loss) for step, loss in losses.items()})
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {path} is incomplete: {error}") from None


def best_checkpoints(paths: Sequence[Path], history: ValidationHistory, count: int) -> list[Path]:
    """Returns the `count` checkpoints among `paths` with the lowest losses, sorted by step."""
    found = {checkpoint_step(path): path for path in paths}
    losses = {step: loss for step, loss in history.losses.items() if step in found}
    return [found[step] for step in ValidationHistory(losses).best(count)]


def read_state(path: Path) -> Any:
    """Reads `state.json` of a checkpoint. Raises an error if the file is missing or no JSON."""
    with (path / STATE).open("rb") as file:
        return read_json(file, _MOST_STATE_BYTES)
