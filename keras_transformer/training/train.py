"""Training by a recipe."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.freed_memory import keep_freed_memory
from keras_transformer._backend.without_tensorflow import without_tensorflow
from keras_transformer.data import (
    BatchPlan,
    Tokenizer,
    TokenStore,
    evaluation_batches,
    fit_data,
    read_parallel,
)
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.recipe import Recipe
from keras_transformer.run import Run, Split
from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.callbacks import (
    Checkpoints,
    ProgressBar,
    Reporter,
    Reseed,
    StepReports,
    StopAfter,
    StopEarly,
    Validation,
)
from keras_transformer.training.checkpoint import (
    checkpoint_path,
    load_checkpoint,
    load_history,
    newest_checkpoint,
    remove_unfinished,
)
from keras_transformer.training.distribution import Distribution, start
from keras_transformer.training.masked_crossentropy import MaskedCrossentropy
from keras_transformer.training.tensorboard import TensorBoardWriter
from keras_transformer.training.transformer_adam import TransformerAdam
from keras_transformer.training.transformer_schedule import TransformerSchedule
from keras_transformer.training.transformer_trainer import TransformerTrainer
from keras_transformer.training.validation_history import ValidationHistory
from keras_transformer.training.validation_translations import ValidationTranslations


def train(recipe: Recipe, run: Run, resume: bool = False) -> None:
    """Train by a recipe, from text files to `model.keras`.

    An epoch of `model.fit` is the interval between two checkpoints. The same recipe gives the same
    weights, bit for bit, on the same machine and backend, whether or not it was stopped between.

    Example:

    ```python
    recipe = load_recipe("quickstart")
    train(recipe, Run.create("runs/quickstart", recipe))
    ```

    Args:
        recipe: What to train, and on how many devices, see `training.distribution.start`.
        run: The folder that gets tokenizer, encoded text, checkpoints, logs and the model.
        resume: Whether to go on from the newest checkpoint in `run`, if there is one.

    Raises:
        UserError: If the text, a checkpoint or the disk does not allow to go on.
    """
    keep_freed_memory()
    distribution = start(recipe)
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    settings = recipe.training
    tokenizer = distribution.chief_first(lambda: _tokenizer(recipe, run))
    store = _store("train", recipe, run, tokenizer, distribution)
    plan = BatchPlan(
        store,
        settings.tokens_per_batch,
        seed=recipe.seed,
        accumulation_steps=settings.accumulation_steps,
        length_multiple=settings.length_multiple,
        share=distribution.share,
    )
    checkpoint = distribution.chief_first(lambda: _newest_checkpoint(run, resume))
    with distribution.making():
        trainer, step = (
            load_checkpoint(checkpoint) if checkpoint else (new_trainer(recipe, tokenizer), 0)
        )
        distribution.prepare(trainer)
    history = load_history(checkpoint) if checkpoint else ValidationHistory()
    if step < settings.steps and not history.is_over(settings.early_stopping_patience):
        _fit(trainer, plan, step, history, recipe, run, tokenizer, distribution)
    if distribution.is_chief:
        average_checkpoints(_chosen(run, history), run.model_path)
    distribution.barrier()


def _chosen(run: Run, history: ValidationHistory) -> list[Path]:
    """The checkpoints that `model.keras` is the mean of."""
    patience = run.recipe.training.early_stopping_patience
    count = run.recipe.evaluation.average_last
    if patience is None:
        return run.checkpoints()[-count:]
    (best,), last = history.best(1), max(history.losses)
    reason = "the last step"
    if history.is_over(patience):
        reason = f"{patience} checkpoints without a lower validation loss"
    name, loss = checkpoint_path("", best).name, history.losses[best]
    print(f"Training ended at step {last:,}: {reason}; {name} was best, {loss:.4f} nats a token")
    paths = [checkpoint_path(run.checkpoints_dir, step) for step in history.best(count)]
    return [path for path in paths if path.is_dir()]


def _tokenizer(recipe: Recipe, run: Run) -> Tokenizer:
    if run.tokenizer_dir.is_dir():
        return run.tokenizer()
    if recipe.training.initial_run:
        tokenizer = Run.open(recipe.training.initial_run).tokenizer()
    else:
        settings = recipe.tokenizer
        tokenizer = Tokenizer.train(
            read_parallel(*run.text("train")),
            settings.vocabulary_size,
            model_type=settings.model_type,
            joint=settings.joint,
            normalization=settings.normalization,
        )
    tokenizer.save(run.tokenizer_dir)
    return tokenizer


def _store(
    split: Split, recipe: Recipe, run: Run, tokenizer: Tokenizer, distribution: Distribution
) -> TokenStore:
    def build() -> TokenStore:
        pairs = read_parallel(*run.text(split))
        return TokenStore.build(run.store_dir / split, pairs, tokenizer, recipe.data.max_length)

    store = distribution.chief_first(build)
    if distribution.is_chief:
        print(f"{split}: {store.report}")
    return store


def _newest_checkpoint(run: Run, resume: bool) -> Path | None:
    remove_unfinished(run.checkpoints_dir)
    return newest_checkpoint(run.checkpoints_dir) if resume else None


def new_trainer(recipe: Recipe, tokenizer: Tokenizer) -> TransformerTrainer:
    """Make the compiled model that a recipe's training begins with.

    Raises:
        UserError: If the weights of `training.initial_run` are of other sizes.
    """
    settings = recipe.training
    model = Transformer.from_preset(
        recipe.model.preset,
        tokenizer.source_vocabulary_size,
        target_vocabulary_size=None if tokenizer.joint else tokenizer.target_vocabulary_size,
        pad_id=tokenizer.pad_id,
        dtype=settings.dtype_policy,
        **recipe.model.overrides,
    )
    if settings.initial_run:
        _begin_with(Run.open(settings.initial_run), model)
    peak = settings.peak_learning_rate
    schedule = TransformerSchedule(
        d_model=model.d_model if peak is None else None,
        warmup_steps=settings.warmup_steps,
        peak=peak,
        scale=settings.learning_rate_scale,
    )
    accumulation = settings.accumulation_steps
    optimizer = TransformerAdam(
        schedule,
        beta_1=settings.adam_beta_1,
        beta_2=settings.adam_beta_2,
        epsilon=settings.adam_epsilon,
        global_clipnorm=settings.global_clipnorm,
        use_ema=settings.ema_momentum is not None,
        ema_momentum=settings.ema_momentum or 0.0,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
    )
    loss = MaskedCrossentropy(settings.label_smoothing, model.pad_id, reduction="sum")
    trainer = TransformerTrainer(
        model, loss, settings.logits_mebibytes, settings.r_drop, settings.recomputation
    )
    trainer.compile(optimizer, jit_compile=settings.jit_compile)
    return trainer


def _begin_with(run: Run, model: Transformer) -> None:
    weights = run.model().get_weights()
    if [weight.shape for weight in weights] != [weight.shape for weight in model.weights]:
        raise UserError(
            f"training.initial_run: {run.model_path} has not the sizes that the recipe's section "
            f"model asks for; {run.recipe_path} says which it was trained with"
        )
    model.set_weights(weights)


def _fit(
    trainer: Any,
    plan: BatchPlan,
    step: int,
    history: ValidationHistory,
    recipe: Recipe,
    run: Run,
    tokenizer: Tokenizer,
    distribution: Distribution,
) -> None:
    settings = recipe.training
    accumulation, interval = settings.accumulation_steps, settings.checkpoint_every
    store = _store("validation", recipe, run, tokenizer, distribution)
    local = distribution.local(trainer)
    patience = settings.early_stopping_patience
    reporters: list[Reporter] = []
    shown: list[Any] = []
    kept: list[Any] = []
    with ExitStack() as stack:
        if distribution.is_chief:
            writer = stack.enter_context(TensorBoardWriter(run.logs_dir, first_step=step + 1))
            progress = ProgressBar(settings.steps, accumulation, step)
            reporters, shown = [writer, progress], [progress]
            kept = _keepers(local, store, reporters, writer, history, run, tokenizer)
        stack.enter_context(distribution.fitting())
        trainer.fit(
            fit_data(plan.batches(step)),
            initial_epoch=step // interval,
            epochs=-(-settings.steps // interval),
            steps_per_epoch=interval * accumulation,
            shuffle=False,
            verbose=0,
            callbacks=[
                StopAfter(settings.steps, accumulation),
                Reseed(recipe.seed, accumulation),
                *shown,
                StepReports(reporters, plan.tokens, accumulation, metrics=distribution.metrics),
                *distribution.on_chief(kept, local),
                *([StopEarly(history, patience, distribution.of_chief)] if patience else []),
            ],
        )


def _keepers(
    trainer: Any,
    validation_store: TokenStore,
    reporters: list[Reporter],
    writer: TensorBoardWriter,
    history: ValidationHistory,
    run: Run,
    tokenizer: Tokenizer,
) -> list[Any]:
    """Callbacks that measure and keep the model at the end of every epoch."""
    settings = run.recipe.training
    accumulation = settings.accumulation_steps
    batches = evaluation_batches(
        validation_store, settings.tokens_per_batch, settings.length_multiple
    )
    translations = None
    if settings.validation_bleu_sentences:
        translations = ValidationTranslations(trainer.model, tokenizer, run, writer)
    keep_best = run.recipe.evaluation.average_last if settings.early_stopping_patience else 0
    return [
        Validation(batches, [*reporters, history], accumulation, further=translations),
        Checkpoints(
            run.checkpoints_dir, settings.keep_checkpoints, accumulation, history, keep_best
        ),
    ]
