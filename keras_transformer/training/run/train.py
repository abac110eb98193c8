"""Trains a translation model as a recipe describes it."""

from contextlib import nullcontext

import keras

from keras_transformer._backend.compile_function import is_on_cpu
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.fit_loop import fit
from keras_transformer.training.run.finish import finish
from keras_transformer.training.run.prepare import prepare
from keras_transformer.training.run.start import start
from keras_transformer.training.run.validate import TranslationValidation
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.step.compile_ahead import CompileAhead


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
    with run.training() if distribution.is_chief else nullcontext():
        _train(run, resume, callbacks or [], distribution)


def _train(
    run: Run, resume: bool, callbacks: list[keras.callbacks.Callback], distribution: Distribution
) -> None:
    recipe, settings = run.recipe, run.recipe.training
    trainer, tokenizer, plan, validation_batches = prepare(run, resume, distribution)
    if _compiles_ahead(trainer):
        callbacks = [*callbacks, CompileAhead(plan.padding(settings.steps))]
    history = fit(
        trainer,
        lambda count: plan.batches(count // settings.accumulation_steps),
        run.directory,
        steps=settings.steps,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        keep_best=recipe.evaluation.average_last if settings.early_stopping_patience else 0,
        validation=TranslationValidation(run, tokenizer, validation_batches),
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


def _compiles_ahead(trainer: SlicedLogitsTrainer) -> bool:
    """Returns whether all shapes of batches are compiled at the start: on one GPU of JAX."""
    on_jax = keras.config.backend() == "jax" and trainer.distribution.is_one_device
    return on_jax and trainer.jit_compile and not is_on_cpu()


def _hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    return {
        name: value
        for name, value in recipe.settings().items()
        if name.startswith(("tokenizer.", "model.", "training."))
        and isinstance(value, bool | int | float | str)
    }
