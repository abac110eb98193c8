"""Devices and processes that train a model: what all backends share, and one device."""

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np

from keras_transformer._backend.fit_data import fit_data
from keras_transformer._backend.types import Tensor
from keras_transformer.data import Shard
from keras_transformer.errors import UserError
from keras_transformer.models.crossentropy import sliced_crossentropy

T = TypeVar("T")


class Distribution:
    """The devices and processes that train a model. This class itself stands for one device.

    `Distribution.all_devices()` returns the object for all devices and processes. Any Keras model
    then trains to the same weights as on one device, except for rounding and dropout.

    Each replica (copy of the model) gets a part (shard) of the rows of each batch. Its loss is a
    sum over its tokens, divided by the real tokens of all replicas. So the gradients of all
    replicas add up to the gradient on one device. One process is the chief: only it writes to the
    run folder and prints.

    Example:

    ```python
    distribution = Distribution.all_devices()
    with distribution.making():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    batches = distribution.split(array_batches(x, y, batch_size=32)(0))
    with distribution.fitting(model):
        model.fit(batches, steps_per_epoch=1_000)
    distribution.save(model, "model.keras")
    ```

    Attributes:
        rank: Index of this process, counted from 0. The rank of the chief is 0.
        shard: The part of each batch's rows that this process gets.
        gradient_parts: Number of replicas whose gradients are summed; 1 on JAX, where XLA does it.
        scale: Factor of a replica's loss. It is not 1 if gradients are averaged, not summed.
        needs_copy: Whether the chief validates and saves a copy of the model on one device.
    """

    rank = 0
    shard = Shard()
    gradient_parts = 1
    scale = 1
    needs_copy = False
    crossentropy: Callable[..., Tensor] = staticmethod(sliced_crossentropy)

    @staticmethod
    def all_devices(model_shards: int = 1, fully_sharded: bool = False) -> "Distribution":
        """Sets up all devices of all processes that a launcher started.

        Call this method before you make a model. A second call returns the same object.

        Args:
            model_shards: Number of devices that share the weights of one copy of the model. Only
                JAX can split weights in this way. Defaults to 1.
            fully_sharded: Whether each process of PyTorch holds only a part of the weights and of
                the optimizer state, and gathers the weights of a layer when it needs them (FSDP).
                Defaults to False.
        """
        return _all_devices(keras.config.backend(), model_shards, fully_sharded)

    @property
    def is_one_device(self) -> bool:
        return type(self) is Distribution

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def making(self) -> AbstractContextManager[Any]:
        """Returns the context in which to make or load the model."""
        return nullcontext()

    def fitting(self, model: keras.Model) -> AbstractContextManager[Any]:
        """Returns the context in which to call `fit` of a compiled model.

        Within this context, all processes must call the methods of the model.
        """
        return nullcontext()

    def alone(self) -> AbstractContextManager[Any]:
        """Returns the context, within `fitting`, in which the chief works on one device."""
        return nullcontext()

    def total(self, number: Tensor) -> Tensor:
        """Returns the sum of a number over all replicas, in a training step."""
        return number

    def split(self, batches: Any) -> Any:
        """Returns the rows of batches that this process gets, for `fit` of Keras or the package.

        If the replicas do not divide a batch, it gets more rows, whose weight is 0. The loss
        and the metrics in `weighted_metrics` do not count these rows, but those in `metrics` do.

        Args:
            batches: Iterable of the same batches in all processes, or the argument `batches` of
                the package's `fit`. A batch is `(x, y)` or `(x, y, sample_weight)`, of NumPy arrays
                or nested structures of arrays.

        Returns:
            The data for `model.fit`, or a function if `batches` is a function.
        """
        if callable(batches):
            return lambda skipped: map(self._rows, batches(skipped))
        return fit_data(map(self._rows, batches))

    def _rows(self, batch: object) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        size = len(keras.tree.flatten(x)[0])
        begin, end, parts = self.shard
        each = -(-size // parts)
        rows = np.arange(begin * each, end * each)
        # A mean over all rows would also count the rows without weight.
        factors = np.where(rows < size, each * parts / size, 0.0).astype("float32")

        def own(array: np.ndarray) -> np.ndarray:
            return np.take(array, rows, axis=0, mode="wrap")

        def weighted(array: np.ndarray) -> np.ndarray:
            return own(array) * factors.reshape(-1, *[1] * (np.ndim(array) - 1))

        if weights is None:
            shapes = keras.tree.map_structure(lambda array: (size, *[1] * (np.ndim(array) - 1)), y)
            weights = keras.tree.map_structure_up_to(y, np.ones, shapes)
        x, y = keras.tree.map_structure(own, (x, y))
        return x, y, keras.tree.map_structure(weighted, weights)

    def assign_seed(self, state: keras.Variable, seed: int) -> None:
        """Sets the state of a seed generator from `seed` < 2 ** 31, differently in each replica."""
        state.assign([seed, 0])

    def read(self, variable: keras.Variable) -> np.ndarray:
        """Returns the whole value of a variable, of which several devices may hold the parts."""
        return variable.numpy()

    def of_chief(self, flag: bool) -> bool:
        """Returns the chief's value of `flag` in every process. All processes must call this."""
        return flag

    def local(self, trainer: keras.Model) -> keras.Model | None:
        """Returns the model that the chief validates and saves. Call it within `fitting`."""
        if not self.needs_copy:
            return trainer
        with self.alone():
            return _copy(trainer) if self.is_chief else None

    def save(self, model: keras.Model, path: str | Path) -> None:
        """Saves the whole model in the chief. All processes must call this, outside `fitting`."""
        self.on_chief(lambda whole: whole.save(path), model, self.local(model))

    def on_chief(
        self,
        action: Callable[[keras.Model], object],
        trainer: keras.Model,
        local: keras.Model | None,
    ) -> None:
        """Calls `action(local)` in the chief. All processes must call this."""

        def copied(model: keras.Model) -> list[keras.Variable]:
            return [*model.weights, *model.optimizer.variables] if self.needs_copy else []

        values = [self.read(variable) for variable in copied(trainer)]
        if self.is_chief:
            with self.alone():
                for variable, value in zip(copied(local), values, strict=True):
                    variable.assign(value)
                action(local)

    def chief_first(self, action: Callable[[], T]) -> T:
        """Calls a function in the chief, then in the others, which can read the files it wrote.

        If the function fails in the chief, the other processes raise `UserError`.
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


ONE_DEVICE = Distribution()


def _copy(model: keras.Model) -> keras.Model:
    """Returns a compiled model with the same settings but new weights."""
    if hasattr(model, "local_copy"):
        return model.local_copy()
    copy = type(model).from_config(model.get_config())
    copy.compile_from_config(model.get_compile_config())  # also builds its optimizer
    return copy


@functools.cache
def _all_devices(backend: str, model_shards: int, fully_sharded: bool) -> Distribution:
    if (model_shards > 1 and backend != "jax") or (fully_sharded and backend != "torch"):
        raise UserError(
            "`model_shards` needs KERAS_BACKEND=jax, and `fully_sharded` KERAS_BACKEND=torch. "
            f"Received: backend={backend}"
        )
    options: dict[str, Any] = {"jax": [model_shards], "torch": [fully_sharded]}
    # The backend's file extends this one, so it is imported only here.
    return importlib.import_module(f"{__package__}.{backend}").all_devices(
        *options.get(backend, [])
    )
