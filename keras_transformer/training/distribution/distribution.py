"""Defines the base class for training on several devices, and sets up devices and processes."""

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
from keras_transformer.runs.run import Run, training_lock
from keras_transformer.training.crossentropy import sliced_crossentropy

T = TypeVar("T")
Action = Callable[[Any, int, dict[str, Any]], Any]

# Launchers set these environment variables to the number of training processes.
_LAUNCHERS = {"torch": "WORLD_SIZE", "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES"}


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
        """Returns a function that takes an iterator and trains on its next batch.

        If the result is None, Keras uses its own function.
        """
        return None

    def assign_seed(self, state: Any, seed: int) -> None:
        """Sets the state of a seed generator from `seed`, differently in each replica.

        `seed` is from 0 to 2 ** 31 - 1.
        """
        state.assign([seed, 0])

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """Returns the metrics over all replicas.

        All processes must call this method, and then reset the metrics.
        """
        return trainer.get_metrics_result()

    def local(self, trainer: Any) -> Any:
        """Returns a model on one device. The chief validates and saves this model."""
        return trainer

    def on_chief(self, action: Action, local: Any) -> Action:
        """Returns an action that all processes must call.

        In the chief process, the returned action runs `action` on the model `local`.
        """
        return action if self.is_chief else lambda model, step, logs: None

    def of_chief(self, flag: bool) -> bool:
        """Returns the chief's value of `flag` in every process. All processes must call this."""
        return flag

    def training_lock(self, directory: Path) -> AbstractContextManager[Any]:
        """Returns a context in which the chief locks a run folder (see `run.training_lock`).

        In other processes, the context does nothing.
        """
        return training_lock(directory) if self.is_chief else nullcontext()

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

    Only the chief process has a copy. In the chief, `copy` is a compiled model with the
    architecture of the trained model. In other processes, `copy` is None. All processes call `read`
    for each variable, because several devices may hold parts of the variable. `read` returns the
    whole value. The chief assigns the values to `copy` and runs `action`. Both happen in the
    context that `alone` returns.
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


def start(recipe: Recipe) -> Distribution:
    """Sets up the devices and processes for `training.distribution` of a recipe.

    With `none`, one process trains on one device. With `data_parallel`, every device gets a part of
    each batch. `model_parallel` also splits the weights over `training.model_shards` devices. It
    works only on JAX. Call `start` before you make a model. Raises `UserError` if the backend does
    not support the recipe's settings.
    """
    kind, backend = recipe.training.distribution, keras.config.backend()
    shards = recipe.training.model_shards
    if kind != "model_parallel" and shards > 1:
        raise UserError(
            "training.model_shards has no effect without training.distribution=model_parallel: set "
            f"training.model_shards=1. Received: model_shards={shards}, distribution={kind}"
        )
    if kind == "none":
        count = os.environ.get(_LAUNCHERS.get(backend, ""), "1")
        if count != "1" or (backend == "tensorflow" and "TF_CONFIG" in os.environ):
            raise UserError(
                "the launcher started several processes. With training.distribution=none, all "
                "processes would write to the same run folder: set "
                "training.distribution=data_parallel"
            )
        return Distribution()
    _check(recipe, backend)
    return _start(backend, shards)


@functools.cache
def _start(backend: str, model_shards: int) -> Distribution:
    if backend == "torch":
        from keras_transformer.training.distribution.torch_processes import TorchProcesses

        return TorchProcesses()
    if backend == "jax":
        from keras_transformer.training.distribution.jax_mesh import JaxMesh

        return JaxMesh(model_shards)
    from keras_transformer.training.distribution.tensorflow_replicas import TensorFlowReplicas

    return TensorFlowReplicas()


def _check(recipe: Recipe, backend: str) -> None:
    training = recipe.training
    if training.distribution == "model_parallel":
        if backend != "jax":
            raise UserError(
                "training.distribution=model_parallel needs KERAS_BACKEND=jax; the backend "
                f"{backend} supports only data_parallel"
            )
        _check_sizes(recipe)
    if backend == "tensorflow" and training.accumulation_steps > 1:
        raise UserError(
            "TensorFlow's strategies cannot accumulate gradients: use more replicas and a larger "
            "training.tokens_per_batch, or another KERAS_BACKEND. "
            f"Received: training.accumulation_steps={training.accumulation_steps}"
        )
    if backend == "torch" and training.jit_compile is True:
        raise UserError(
            "on PyTorch, training.jit_compile=true needs training on one device: set "
            "training.jit_compile=auto"
        )
    if backend == "tensorflow" and training.jit_compile is True:
        raise UserError(
            "XLA cannot compile a training step with a TensorFlow strategy: set "
            "training.jit_compile=false, or use another KERAS_BACKEND"
        )
    if backend != "jax" and recipe.model.normalization == "batch":
        raise UserError(
            "with model.normalization=batch, each replica would use the statistics of its own "
            "tokens: use layer normalization, or KERAS_BACKEND=jax. "
            f"Received: training.distribution={training.distribution}"
        )
    if backend != "jax" and training.dtype_policy == "mixed_float16":
        raise UserError(
            "with training.dtype_policy=mixed_float16, each replica would use its own loss scale: "
            "use mixed_bfloat16, or KERAS_BACKEND=jax. "
            f"Received: training.distribution={training.distribution}"
        )


def _check_sizes(recipe: Recipe) -> None:
    sizes = {**recipe.model.sizes, "vocabulary_size": recipe.tokenizer.vocabulary_size}
    shards = recipe.training.model_shards
    for name in ("num_heads", "d_model", "d_ff", "vocabulary_size"):
        if sizes.get(name, 0) % shards:
            raise UserError(
                "training.model_shards must divide num_heads, d_model, d_ff and vocabulary_size. "
                f"Received: model_shards={shards}, {name}={sizes[name]}"
            )
