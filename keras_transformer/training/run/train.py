"""Trains a model as a recipe describes it."""

import os
from contextlib import nullcontext
from pathlib import Path

import keras

from keras_transformer._backend.compile_function import is_on_cpu
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.callbacks import CompileAhead
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution
from keras_transformer.training.fit_loop import fit
from keras_transformer.training.run.finish import finish
from keras_transformer.training.run.prepare import prepare
from keras_transformer.training.run.validate import VALIDATIONS

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
    works only on JAX. Call `start` before you make a model. Raises `UserError` if the backend does
    not support the recipe's settings.
    """
    training, backend = recipe.training, keras.config.backend()
    kind, shards = training.distribution, training.model_shards
    if kind == "none" and os.environ.get(_LAUNCHERS[backend], "1") != "1":
        raise UserError(
            "the launcher started several processes, which would all write to the same run folder: "
            "set training.distribution=data_parallel"
        )
    sizes = {**recipe.model.sizes, "vocabulary_size": recipe.tokenizer.vocabulary_size}
    divided = ("num_heads", "num_kv_heads", "d_model", "d_ff", "vocabulary_size")
    is_uneven = any(sizes.get(name, 0) % shards for name in divided)
    if is_uneven or (kind != "model_parallel" and shards > 1):
        raise UserError(
            "training.model_shards needs training.distribution=model_parallel, and must divide "
            f"{', '.join(divided)}. Received: training.model_shards={shards}"
        )
    if kind == "none":
        return ONE_DEVICE
    unsupported = {
        "training.distribution=model_parallel": kind == "model_parallel" and backend != "jax",
        "training.jit_compile=true": training.jit_compile is True and backend == "tensorflow",
    }
    if found := [name for name, is_set in unsupported.items() if is_set]:
        raise UserError(
            f"{backend} cannot train on several devices with {' and '.join(found)}: choose another "
            "setting, or KERAS_BACKEND=jax"
        )
    return Distribution.all_devices(shards)


def open_run(
    distribution: Distribution, directory: str | Path, recipe: Recipe, resume: bool
) -> Run:
    """Calls `Run.create` or `Run.resume` in the chief, then `Run.resume` in other processes."""
    is_new = distribution.is_chief and not resume
    opened = Run.create if is_new else Run.resume
    return distribution.chief_first(lambda: opened(directory, recipe))


def train(
    run: Run,
    resume: bool = False,
    callbacks: list[keras.callbacks.Callback] | None = None,
    distribution: Distribution | None = None,
) -> None:
    """Trains the model that a run's recipe describes, and writes it to `model.keras`.

    On the same machine and backend, the same recipe gives bit-identical weights, even if training
    is stopped and resumed. The training loop is `keras_transformer.training.fit`.

    When a run resumes, some settings may differ from those of its recipe, see `Run.resume`. The
    backend may also differ. The run's `history.json` records these changes. A finished run
    continues if the recipe has more steps, and its checkpoints are averaged again if it averages
    another number. The old model is then copied to `model.previous.keras`.

    Example:

    ```python
    recipe = load_recipe("quickstart")
    train(Run.create("runs/quickstart", recipe))
    ```

    Args:
        run: The run. Its folder gets the tokenizer, the encoded text, checkpoints, logs and the
            model. Its recipe has all settings, including the devices (`training.distribution`).
        resume: Whether to resume from the newest checkpoint in `run`, if there is one.
        callbacks: Keras callbacks to pass to `fit`. Defaults to None, which means no callbacks.
        distribution: The devices and processes, if `start` has already set them up. Defaults to
            None, which sets them up.

    Raises:
        UserError: If the recipe, the text or a checkpoint cannot be used. If the text of a resumed
            run has changed, or it has a model but no checkpoint. If another process trains in the
            folder, a loss or weight becomes infinite or NaN, or the disk is full.
    """
    distribution = distribution or start(run.recipe)
    recipe, settings, base = run.recipe, run.recipe.training, run.base
    with run.training() if distribution.is_chief else nullcontext():
        trainer, tokenizer, plan, validation_batches = prepare(run, resume, distribution)
        callbacks = [*(callbacks or [])]
        # On one GPU of JAX, all shapes of batches are compiled at the start.
        on_jax = keras.config.backend() == "jax" and distribution.is_one_device
        if on_jax and trainer.jit_compile and not is_on_cpu():
            callbacks.append(CompileAhead(plan.padding(settings.steps)))
        history = fit(
            trainer,
            lambda count: plan.batches(count // settings.accumulation_steps),
            run.directory,
            steps=settings.steps,
            checkpoint_every=settings.checkpoint_every,
            keep_checkpoints=settings.keep_checkpoints,
            base=base,
            keep_best=recipe.evaluation.average_last if settings.early_stopping_patience else 0,
            validation=VALIDATIONS[recipe.task](run, tokenizer, validation_batches),
            patience=settings.early_stopping_patience,
            callbacks=callbacks,
            seed=recipe.seed,
            resume=resume,
            hyperparameters=_hyperparameters(recipe),
            tokens=plan.tokens,
            distribution=distribution,
        )
        # The other processes wait until the model is written.
        distribution.chief_first(
            lambda: finish(run, history, tokenizer) if distribution.is_chief else None
        )


def _hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    return {
        name: value
        for name, value in recipe.settings().items()
        if name.startswith(("tokenizer.", "model.", "training."))
        and isinstance(value, bool | int | float | str)
    }
