"""Which distribution a recipe and its launcher ask for."""

import functools
import os

import keras

from keras_transformer.errors import UserError
from keras_transformer.models.presets import PRESETS
from keras_transformer.recipe import Recipe
from keras_transformer.training.distribution.distribution import Distribution

# What the launchers of the three engines set in processes that are to train together.
_LAUNCHERS = {"torch": "WORLD_SIZE", "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES"}


def start(recipe: Recipe) -> Distribution:
    """Join the other processes and devices of a training, as `training.distribution` says.

    The first call of a process decides; to be made before there is any model.

    Args:
        recipe: `none` is one process on one device. `data_parallel` gives every device a share of
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
