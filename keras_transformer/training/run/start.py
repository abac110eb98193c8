"""Sets up the devices and processes that a recipe asks for, and the run folder in them."""

import os
from pathlib import Path

import keras

from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution

# Variables by which launchers of training processes give their number, or the whole cluster.
_LAUNCHERS = {
    "torch": "WORLD_SIZE",
    "jax": "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "tensorflow": "TF_CONFIG",
}


def start(recipe: Recipe) -> Distribution:
    """Sets up the devices and processes for `training.distribution` of a recipe.

    With `none`, one process trains on one device. With `data_parallel`, every device gets a part of
    each batch. `model_parallel` also splits the weights over `training.model_shards` devices. It
    works only on JAX. Call `start` before you make a model.

    Raises:
        UserError: If the backend does not support the recipe's settings, or would train to other
            weights than one device.
    """
    _check_supported(recipe, keras.config.backend())
    if recipe.training.distribution == "none":
        return ONE_DEVICE
    return Distribution.all_devices(recipe.training.model_shards)


def _check_supported(recipe: Recipe, backend: str) -> None:
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
        "training.jit_compile=true": on_tensorflow and training.jit_compile is True,
    }
    found = [name for name, is_set in unsupported.items() if is_set]
    if found and kind != "none" and backend != "jax":
        raise UserError(
            f"{backend} cannot train on several devices with {' and '.join(found)}: choose another "
            "setting, or KERAS_BACKEND=jax"
        )


def open_run(
    distribution: Distribution, directory: str | Path, recipe: Recipe, resume: bool
) -> Run:
    """Calls `Run.create` or `Run.resume` in the chief, then `Run.resume` in other processes."""
    is_new = distribution.is_chief and not resume
    opened = Run.create if is_new else Run.resume
    return distribution.chief_first(lambda: opened(directory, recipe))
