"""The base class for training on several devices."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_transformer.data import Shard
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.crossentropy import sliced_crossentropy

T = TypeVar("T")
Action = Callable[[Any, int, dict[str, Any]], Any]


class Distribution:
    """Base class for training on several devices. This class itself trains on one device.

    A replica is a copy of the model. Each replica gets a part (shard) of the rows of each batch.
    The loss of a replica is a weighted sum over its tokens. The weights come from the whole
    optimizer step. So the gradients of all replicas add up to the gradient of the mean loss over
    the real tokens of the step. Clipping, learning rate and number of steps are the same as on one
    device.

    One process is the chief. Only the chief writes to the run folder and prints.

    Attributes:
        rank: Index of this process, counted from 0. The rank of the chief is 0.
        shard: The part of each batch's rows that this process gets.
        gradient_parts: Number of parts of the loss. Each replica computes one part, and the
            gradients of all parts are summed. On JAX, the number is always 1, because the loss of
            the whole batch is computed at once.
    """

    rank = 0
    shard = Shard()
    gradient_parts = 1
    crossentropy: Callable[..., Any] = staticmethod(sliced_crossentropy)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def making(self) -> AbstractContextManager[Any]:
        """Returns the context in which to make or load the model."""
        return nullcontext()

    def fitting(self) -> AbstractContextManager[Any]:
        """Returns the context in which to call the model's `fit`."""
        return nullcontext()

    def prepare(self, trainer: Any) -> None:
        """Prepares a compiled model, whose optimizer is built, for training in several replicas."""

    def train_function(self, trainer: Any) -> Callable[[Any], Any] | None:
        """Returns a function that trains on an iterator's next batch. None means that of Keras."""
        return None

    def assign_seed(self, state: Any, seed: int) -> None:
        """Sets the state of a seed generator from `seed`, differently in each replica.

        `seed` is from 0 to 2 ** 31 - 1.
        """
        state.assign([seed, 0])

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """Returns the metrics over all replicas. All processes must call it, then reset them."""
        return trainer.get_metrics_result()

    def local(self, trainer: Any) -> Any:
        """Returns a model on one device. The chief validates and saves this model."""
        return trainer

    def on_chief(self, action: Action, local: Any) -> Action:
        """Returns an action that all processes must call. The chief's acts on the model `local`."""
        return action if self.is_chief else lambda model, step, logs: None

    def of_chief(self, flag: bool) -> bool:
        """Returns the chief's value of `flag` in every process. All processes must call this."""
        return flag

    def barrier(self) -> None:
        """Waits for the other processes."""

    def chief_first(self, action: Callable[[], T]) -> T:
        """Calls a function in the chief process, then in the other processes.

        The other processes can then read the files that the chief has written. If the function
        fails in the chief, the other processes raise `UserError`.
        """
        failure = None
        if self.is_chief:
            try:
                result = action()
            except Exception as error:
                failure = error
        if not self.of_chief(failure is None):
            raise failure or UserError("the first process failed, see its error message")
        return result if self.is_chief else action()

    def open_run(self, directory: str | Path, recipe: Recipe, resume: bool) -> Run:
        """Calls `Run.create` or `Run.resume` in the chief, then `Run.resume` in other processes."""
        is_new = self.is_chief and not resume
        return self.chief_first(lambda: (Run.create if is_new else Run.resume)(directory, recipe))


def on_copy(
    action: Action,
    copy: Any,
    read: Callable[[Any], np.ndarray],
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Action:
    """Returns an action that copies the trained model, then runs `action` on the copy.

    Only the chief has a copy: a compiled model with the architecture of the trained model. In other
    processes, `copy` is None. All processes call `read`, which returns the whole value of a
    variable, because several devices may hold its parts. The chief assigns the values to `copy` and
    runs `action`, both in the context that `alone` returns.
    """

    def variables(trainer: Any) -> list[Any]:
        return [*trainer.weights, *trainer.optimizer.variables]

    def act(trainer: Any, step: int, logs: dict[str, Any]) -> None:
        values = [read(variable) for variable in variables(trainer)]
        if copy is None:
            return
        with alone():
            for variable, value in zip(variables(copy), values, strict=True):
                variable.assign(value)
            action(copy, step, logs)

    return act
