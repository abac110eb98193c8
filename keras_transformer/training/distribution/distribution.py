"""Where a training runs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from keras_transformer.data import Share
from keras_transformer.recipe import Recipe
from keras_transformer.run import Run

T = TypeVar("T")


class Distribution:
    """One process that trains on one device; the base of those that are several.

    Every replica takes a share of the rows of the same global batches, and the loss is a sum over
    tokens whose weights are those of the global batch. So the sum of all gradients is the gradient
    of the mean over the real tokens of the step, and clipping, learning rate and number of steps
    are what they are on one device.

    One process is the chief: it alone writes to the run folder and talks to the user.

    Attributes:
        rank: Number of this process, from 0; the chief's is 0.
        share: What of every batch this process takes.
    """

    rank = 0
    share = Share()

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def making(self) -> AbstractContextManager[Any]:
        """Context in which the model to train is made or loaded."""
        return nullcontext()

    def fitting(self) -> AbstractContextManager[Any]:
        """Context of the model's `fit`."""
        return nullcontext()

    def prepare(self, trainer: Any) -> None:
        """Make a compiled model train together with its replicas."""

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """The metrics over all replicas, once before they are reset. All processes must ask."""
        return trainer.get_metrics_result()

    def local(self, trainer: Any) -> Any:
        """The model as the chief's callbacks see it: whole and on one device."""
        return trainer

    def on_chief(self, callbacks: Sequence[Any], local: Any) -> list[Any]:
        """Callbacks that look at `local` at the end of an epoch, where only the chief calls them.

        Args:
            callbacks: Keras callbacks.
            local: What the method `local` returned.
        """
        return list(callbacks) if self.is_chief else []

    def of_chief(self, flag: bool) -> bool:
        """The chief's `flag`, in all processes. All must ask."""
        return flag

    def barrier(self) -> None:
        """Wait for the other processes."""

    def chief_first(self, action: Callable[[], T]) -> T:
        """Call a function in the chief, and then, when it has left its files, in the others."""
        if self.is_chief:
            result = action()
            self.barrier()
            return result
        self.barrier()
        return action()

    def open_run(self, directory: str | Path, recipe: Recipe, resume: bool) -> Run:
        """Begin a run, or go on with one, in all processes.

        Raises:
            UserError: As `Run.create` and `Run.resume` do.
        """
        is_new = self.is_chief and not resume
        return self.chief_first(lambda: (Run.create if is_new else Run.resume)(directory, recipe))
