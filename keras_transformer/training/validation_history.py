"""Which checkpoints of a run validation found best."""

import math
from collections.abc import Mapping


class ValidationHistory:
    """Validation losses of all checkpoints of a run.

    It is a reporter: what `Validation` reports is kept. Checkpoints carry it on, so that a run that
    goes on knows what was before. Early stopping looks at the loss, not at BLEU: the loss is of all
    validation sentences and always there, BLEU of a few greedy translations and mostly noise from
    one checkpoint to the next.

    Args:
        losses: Optimizer steps to validation loss, in nats per real target token. Defaults to none.
    """

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.losses = dict(losses or {})

    def report(self, step: int, values: Mapping[str, float]) -> None:
        if "validation/loss" in values:
            self.losses[step] = values["validation/loss"]

    def best(self, count: int) -> list[int]:
        """Steps with the lowest losses, in the order of steps; of equal ones the earlier."""

        def rank(step: int) -> tuple[float, int]:
            loss = self.losses[step]
            return (math.inf if math.isnan(loss) else loss), step

        return sorted(sorted(self.losses, key=rank)[:count])

    def is_over(self, patience: int | None) -> bool:
        """Whether the last `patience` losses were none lower than the lowest before them."""
        if patience is None or not self.losses:
            return False
        (best,) = self.best(1)
        return sum(step > best for step in self.losses) >= patience
