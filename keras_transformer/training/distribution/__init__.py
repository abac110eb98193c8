"""Trains on several devices and in several processes, as a recipe asks for."""

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np

from keras_transformer.data import Shard
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.crossentropy import sliced_crossentropy

T = TypeVar("T")
Action = Callable[[Any, int, dict[str, Any]], Any]

# Variables by which launchers of training processes give their number, or the whole cluster.
_LAUNCHERS = {
    "torch": "WORLD_SIZE",
    "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "tensorflow": "TF_CONFIG",
}


class Distribution:
    """Base class for training on several devices. This class itself trains on one device.

    Each replica (copy of the model) gets a part (shard) of the rows of each batch. Its loss is a
    sum over its tokens, weighted by the real tokens of the whole optimizer step. So the gradients
    of all replicas add up to the gradient on one device. One process is the chief: only it writes
    to the run folder and prints.

    Attributes:
        rank: Index of this process, counted from 0. The rank of the chief is 0.
        shard: The part of each batch's rows that this process gets.
        gradient_parts: Number of replicas whose gradients are summed. On JAX, it is 1, because the
            loss of the whole batch is computed at once.
        needs_copy: Whether the chief validates and saves a copy of the model on one device.
    """

    rank = 0
    shard = Shard()
    gradient_parts = 1
    needs_copy = False
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

    def alone(self) -> AbstractContextManager[Any]:
        """Returns the context, within `fitting`, in which the chief works on one device."""
        return nullcontext()

    def prepare(self, trainer: Any) -> None:
        """Prepares a compiled model, whose optimizer is built, for training in several replicas."""

    def train_function(self, trainer: Any) -> Callable[[Any], Any] | None:
        """Returns a function that trains on an iterator's next batch. None means that of Keras."""
        return None

    def assign_seed(self, state: Any, seed: int) -> None:
        """Sets the state of a seed generator from `seed` < 2 ** 31, differently in each replica."""
        state.assign([seed, 0])

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """Returns the metrics over all replicas. All processes must call it, then reset them."""
        return trainer.get_metrics_result()

    def read(self, variable: Any) -> np.ndarray:
        """Returns the whole value of a variable, of which several devices may hold the parts."""
        return variable.numpy()

    def of_chief(self, flag: bool) -> bool:
        """Returns the chief's value of `flag` in every process. All processes must call this."""
        return flag

    def local(self, trainer: Any) -> Any:
        """Returns the model that the chief validates and saves. Call it within `fitting`."""
        if not self.needs_copy:
            return trainer
        with self.alone():
            return trainer.local_copy() if self.is_chief else None

    def on_chief(self, action: Action, local: Any) -> Action:
        """Returns an action that all processes must call. The chief's acts on the model `local`."""

        def copied(model: Any) -> list[Any]:
            return [*model.weights, *model.optimizer.variables] if self.needs_copy else []

        def act(trainer: Any, step: int, logs: dict[str, Any]) -> None:
            values = [self.read(variable) for variable in copied(trainer)]
            if self.is_chief:
                with self.alone():
                    for variable, value in zip(copied(local), values, strict=True):
                        variable.assign(value)
                    action(local, step, logs)

        return act

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

    def open_run(self, directory: str | Path, recipe: Recipe, resume: bool) -> Run:
        """Calls `Run.create` or `Run.resume` in the chief, then `Run.resume` in other processes."""
        is_new = self.is_chief and not resume
        return self.chief_first(lambda: (Run.create if is_new else Run.resume)(directory, recipe))


ONE_DEVICE = Distribution()


def start(recipe: Recipe) -> Distribution:
    """Sets up the devices and processes for `training.distribution` of a recipe.

    With `none`, one process trains on one device. With `data_parallel`, every device gets a part of
    each batch. `model_parallel` also splits the weights over `training.model_shards` devices. It
    works only on JAX. Call `start` before you make a model.

    Raises:
        UserError: If the backend does not support the recipe's settings, or would train to other
            weights than one device.
    """
    backend, training = keras.config.backend(), recipe.training
    _check(recipe, backend)
    if training.distribution == "none":
        return ONE_DEVICE
    return _start(backend, training.model_shards)


@functools.cache
def _start(backend: str, model_shards: int) -> Distribution:
    if backend == "jax":
        from keras_transformer.training.distribution.jax_mesh import JaxMesh

        return JaxMesh(model_shards)
    if backend == "torch":
        from keras_transformer.training.distribution.torch_processes import TorchProcesses

        return TorchProcesses()
    from keras_transformer.training.distribution.tensorflow_replicas import TensorFlowReplicas

    return TensorFlowReplicas()


def _check(recipe: Recipe, backend: str) -> None:
    training = recipe.training
    kind, shards = training.distribution, training.model_shards
    if kind == "none" and os.environ.get(_LAUNCHERS[backend], "1") != "1":
        raise UserError(
            "the launcher started several processes, which would all write to the same run folder: "
            "set training.distribution=data_parallel"
        )
    sizes = {**recipe.model.sizes, "vocabulary_size": recipe.tokenizer.vocabulary_size}
    divided = ("num_heads", "d_model", "d_ff", "vocabulary_size")
    is_uneven = any(sizes.get(name, 0) % shards for name in divided)
    if is_uneven or (kind != "model_parallel" and shards > 1):
        raise UserError(
            "training.model_shards needs training.distribution=model_parallel, and must divide "
            f"{', '.join(divided)}. Received: training.model_shards={shards}"
        )
    on_tensorflow = backend == "tensorflow"
    unsupported = {
        "training.distribution=model_parallel": kind == "model_parallel",
        "training.accumulation_steps > 1": on_tensorflow and training.accumulation_steps > 1,
        "training.jit_compile=true": on_tensorflow and training.jit_compile is True,
        # Each replica would use the statistics of its own tokens, or a loss scale of its own.
        "model.normalization=batch": recipe.model.normalization == "batch",
        "training.dtype_policy=mixed_float16": training.dtype_policy == "mixed_float16",
    }
    found = [name for name, is_set in unsupported.items() if is_set]
    if found and kind != "none" and backend != "jax":
        raise UserError(
            f"{backend} cannot train on several devices with {' and '.join(found)}: choose another "
            "setting, or KERAS_BACKEND=jax"
        )
