"""The model in training, whole and on one device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np


class OnLocalCopy(keras.callbacks.Callback):
    """Lets callbacks see, at the end of every epoch, a copy of the model instead of itself.

    Saving, evaluating and translating then need no other process. The copy takes memory for
    weights and optimizer on one device of the chief.

    Args:
        callbacks: Keras callbacks that act at the end of an epoch; called in the chief.
        copy: A compiled model like the one in training; None in the other processes.
        read: Function of a variable that returns the whole of it. All processes call it.
        alone: Function that returns a context in which the copy can be used.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        copy: Any,
        read: Callable[[Any], np.ndarray],
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__()
        self.callbacks = callbacks if copy else ()
        self.copy = copy
        self.read = read
        self.alone = alone

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        for callback in self.callbacks:
            callback.set_model(self.copy)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = [self.read(variable) for variable in _variables(self.model)]
        if self.copy is None:
            return
        with self.alone():
            for variable, value in zip(_variables(self.copy), values, strict=True):
                variable.assign(value)
            for callback in self.callbacks:
                callback.on_epoch_end(epoch, logs)


def _variables(trainer: Any) -> list[Any]:
    return [*trainer.weights, *trainer.optimizer.variables]
