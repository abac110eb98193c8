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

    def barrier(self) -> None:
        """Waits for the other processes."""
        self.of_chief(False)

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
    if problem := _problem(recipe, backend):
        names = ("distribution", "model_shards", "accumulation_steps", "jit_compile")
        received = (f"{name}={getattr(training, name)}" for name in names)
        raise UserError(f"{problem}. Received: training.{', training.'.join(received)}")
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


def _problem(recipe: Recipe, backend: str) -> str | None:
    """Returns the rule that the recipe breaks on this backend, or None."""
    training, kind = recipe.training, recipe.training.distribution
    if kind != "model_parallel" and training.model_shards > 1:
        return "training.model_shards needs training.distribution=model_parallel"
    if kind == "none":
        if os.environ.get(_LAUNCHERS[backend], "1") == "1":
            return None
        return (
            "the launcher started several processes, which would all write to the same run folder: "
            "set training.distribution=data_parallel"
        )
    if kind == "model_parallel" and backend != "jax":
        return f"training.distribution=model_parallel needs KERAS_BACKEND=jax, not {backend}"
    sizes = {**recipe.model.sizes, "vocabulary_size": recipe.tokenizer.vocabulary_size}
    divided = ("num_heads", "d_model", "d_ff", "vocabulary_size")
    if any(sizes.get(name, 0) % training.model_shards for name in divided):
        return f"training.model_shards must divide {', '.join(divided)}"
    if backend == "tensorflow" and training.accumulation_steps > 1:
        return (
            "TensorFlow's strategies cannot accumulate gradients: use more replicas and a larger "
            "training.tokens_per_batch, or another KERAS_BACKEND"
        )
    if backend == "tensorflow" and training.jit_compile is True:
        return (
            "XLA cannot compile a training step with a TensorFlow strategy: set "
            "training.jit_compile=false, or use another KERAS_BACKEND"
        )
    if backend != "jax" and recipe.model.normalization == "batch":
        return (
            "with model.normalization=batch, each replica would use the statistics of its own "
            "tokens: use layer normalization, or KERAS_BACKEND=jax"
        )
    if backend != "jax" and training.dtype_policy == "mixed_float16":
        return (
            "with training.dtype_policy=mixed_float16, each replica would use its own loss scale: "
            "use mixed_bfloat16, or KERAS_BACKEND=jax"
        )
    return None
