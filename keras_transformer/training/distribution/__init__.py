"""Trains on several devices and in several processes, as a recipe asks for."""

import functools
import os

import keras

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.training.distribution.distribution import Distribution
from keras_transformer.training.distribution.jax_mesh import JaxMesh
from keras_transformer.training.distribution.tensorflow_replicas import TensorFlowReplicas
from keras_transformer.training.distribution.torch_processes import TorchProcesses

__all__ = ["Distribution", "start"]

# Launchers set these environment variables to the number of training processes.
_LAUNCHERS = {"torch": "WORLD_SIZE", "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES"}


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
        return Distribution()
    return _start(backend, training.model_shards)


@functools.cache
def _start(backend: str, model_shards: int) -> Distribution:
    if backend == "jax":
        return JaxMesh(model_shards)
    return TorchProcesses() if backend == "torch" else TensorFlowReplicas()


def _problem(recipe: Recipe, backend: str) -> str | None:
    """Returns the rule that the recipe breaks on this backend, or None."""
    training, kind = recipe.training, recipe.training.distribution
    if kind != "model_parallel" and training.model_shards > 1:
        return "training.model_shards needs training.distribution=model_parallel"
    if kind == "none":
        count = os.environ.get(_LAUNCHERS.get(backend, ""), "1")
        if count == "1" and not (backend == "tensorflow" and "TF_CONFIG" in os.environ):
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
