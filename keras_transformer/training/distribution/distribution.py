"""Where a training runs: on one device, on several, in several processes."""

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
from keras_transformer.models import PRESETS
from keras_transformer.recipe import Recipe
from keras_transformer.run import Run
from keras_transformer.training.sliced_crossentropy import sliced_crossentropy

T = TypeVar("T")
Action = Callable[[Any, int, dict[str, Any]], Any]

# What the launchers of the three engines set in processes that are to train together.
_LAUNCHERS = {"torch": "WORLD_SIZE", "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES"}


class Distribution:
    """One process that trains on one device; the base of those that are several.

    Every replica takes a shard of the rows of the same global batches, and the loss is a sum over
    tokens whose weights are those of the global batch. So the sum of all gradients is the gradient
    of the mean over the real tokens of the step, and clipping, learning rate and number of steps
    are what they are on one device.

    One process is the chief: it alone writes to the run folder and talks to the user.

    Attributes:
        rank: Number of this process, from 0; the chief's is 0.
        shard: The rows of every batch that this process takes.
        gradient_parts: How many gradients, each of a part of the loss, are summed in a step.
    """

    rank = 0
    shard = Shard()
    gradient_parts = 1
    crossentropy = staticmethod(sliced_crossentropy)

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

    def train_function(self, trainer: Any) -> Callable[[Any], Any] | None:
        """A training step of an iterator's next batch on all replicas; None for Keras's own."""
        return None

    def assign_seed(self, state: Any, seed: int) -> None:
        """Set the state of a `keras.random.SeedGenerator`, another one in every replica.

        The state of replica 0 is that of a single process.

        Args:
            state: The generator's variable.
            seed: Integer in [0, 2 ** 31).
        """
        state.assign([seed, 0])

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """The metrics over all replicas, once before they are reset. All processes must ask."""
        return trainer.get_metrics_result()

    def local(self, trainer: Any) -> Any:
        """The model as the chief's callbacks see it: whole and on one device."""
        return trainer

    def on_chief(self, action: Action, local: Any) -> Action:
        """An action that all processes call, and that the chief's takes on `local`.

        Args:
            action: Function of (model, step, logs).
            local: What the method `local` returned.
        """
        return action if self.is_chief else lambda model, step, logs: None

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


def on_copy(
    action: Action,
    copy: Any,
    read: Callable[[Any], np.ndarray],
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Action:
    """Makes an action see a copy of the model in training, so that it needs no other process.

    Args:
        action: Function of (model, step, logs), called in the chief.
        copy: A compiled model like the one in training; None in the other processes.
        read: Function of a variable that returns the whole of it. All processes call it.
        alone: Function that returns a context in which the copy can be used.
    """

    def act(trainer: Any, step: int, logs: dict[str, Any]) -> None:
        values = [read(variable) for variable in _variables(trainer)]
        if copy is None:
            return
        with alone():
            for variable, value in zip(_variables(copy), values, strict=True):
                variable.assign(value)
            action(copy, step, logs)

    return act


def _variables(trainer: Any) -> list[Any]:
    return [*trainer.weights, *trainer.optimizer.variables]


def start(recipe: Recipe) -> Distribution:
    """Join the other processes and devices of a training, as `training.distribution` says.

    The first call of a process decides; to be made before there is any model.

    Args:
        recipe: `none` is one process on one device. `data_parallel` gives every device a shard of
            each batch. `model_parallel` (JAX) also splits the weights over
            `training.model_shards` devices.

    Raises:
        UserError: If the engine cannot do what the recipe asks for.
    """
    kind, backend = recipe.training.distribution, keras.config.backend()
    if kind == "none":
        _refuse_launcher(backend)
        return Distribution()
    _check(recipe, backend)
    return _start(backend, recipe.training.model_shards if kind == "model_parallel" else 1)


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


def _refuse_launcher(backend: str) -> None:
    count = os.environ.get(_LAUNCHERS.get(backend, ""), "1")
    if count != "1" or (backend == "tensorflow" and "TF_CONFIG" in os.environ):
        raise UserError(
            "this process is one of several, which would all write the same run: set "
            "training.distribution=data_parallel"
        )


def _check(recipe: Recipe, backend: str) -> None:
    training = recipe.training
    if training.distribution == "model_parallel" and backend != "jax":
        raise UserError(
            f"training.distribution=model_parallel needs KERAS_BACKEND=jax; on {backend} there is "
            "data_parallel"
        )
    if training.distribution == "model_parallel":
        _check_sizes(recipe)
    if backend == "tensorflow" and training.accumulation_steps > 1:
        raise UserError(
            "TensorFlow's strategies cannot accumulate gradients: instead of "
            f"training.accumulation_steps={training.accumulation_steps} take more replicas and "
            "larger training.tokens_per_batch, or another KERAS_BACKEND"
        )
    if backend == "tensorflow" and training.jit_compile is True:
        raise UserError(
            "TensorFlow's strategies cannot be compiled by XLA: set training.jit_compile=false, "
            "or another KERAS_BACKEND"
        )
    if backend != "jax" and training.dtype_policy == "mixed_float16":
        raise UserError(
            "training.dtype_policy=mixed_float16 scales the loss in each replica by itself: with "
            f"training.distribution={training.distribution} take mixed_bfloat16, or "
            "KERAS_BACKEND=jax"
        )


def _check_sizes(recipe: Recipe) -> None:
    sizes = {**PRESETS[recipe.model.preset], **recipe.model.overrides}
    sizes["vocabulary_size"] = recipe.tokenizer.vocabulary_size
    shards = recipe.training.model_shards
    for name in ("num_heads", "d_model", "d_ff", "vocabulary_size"):
        if sizes[name] % shards:
            raise UserError(
                f"training.model_shards must divide num_heads, d_model, d_ff and vocabulary_size. "
                f"Received: model_shards={shards}, {name}={sizes[name]}"
            )
