"""Trains a translation model from a recipe."""

import math
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend.process import without_tensorflow
from keras_transformer.data import BatchPlan, Tokenizer, TokenStore, evaluation_batches
from keras_transformer.data.batch_plan import Batch
from keras_transformer.data.tokenizer import PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import (
    AVERAGE_LAST_MEMBER,
    CHECKPOINT_MEMBER,
    CHECKPOINT_MODEL,
    TOKENIZER_MEMBER,
    ValidationHistory,
    best_checkpoints,
    checkpoint_step,
    read_member,
    read_state,
)
from keras_transformer.runs.run import Run
from keras_transformer.runs.text import Split
from keras_transformer.training.checkpoint import average_checkpoints, newest_checkpoint
from keras_transformer.training.crossentropy import MaskedCrossentropy
from keras_transformer.training.distribution import Distribution, start
from keras_transformer.training.fit_loop import fit
from keras_transformer.training.optimizer import TransformerAdam, TransformerSchedule
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.tensorboard import write_projector
from keras_transformer.training.token_budget import longest_lengths
from keras_transformer.training.validation import TranslationValidation
from keras_transformer.translation.open_run import open_model

# TensorBoard reads the vectors as text: these take 36 MB with 512 features.
_PROJECTED = 10_000

# Validation losses of averaged checkpoints that differ by more nats per token tell that training
# has not levelled off.
_STEEP = 0.1


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
    backend may also differ. The run's `history.json` records these changes.

    If you resume a finished run and the recipe still has the same number of steps, nothing changes.
    If the recipe has more steps than before, training continues. If it averages another number of
    checkpoints, they are averaged again. In both cases, the old model is copied to
    `model.previous.keras`, and `model.keras` is replaced.

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
        distribution: The devices and processes, if `training.distribution.start` has already set
            them up. Defaults to None, which sets them up.

    Raises:
        UserError: If the recipe, the text or a checkpoint cannot be used. If another process trains
            in the run's folder. If the text of a resumed run has changed. If a resumed run has a
            model but no checkpoint. If the loss or a weight becomes infinite or NaN. If the disk is
            full.
    """
    distribution = distribution or start(run.recipe)
    with run.training() if distribution.is_chief else nullcontext():
        _train(run, resume, callbacks or [], distribution)


def _train(
    run: Run,
    resume: bool,
    callbacks: list[keras.callbacks.Callback],
    distribution: Distribution,
) -> None:
    recipe, settings = run.recipe, run.recipe.training
    if distribution.is_chief and settings.steps < settings.warmup_steps:
        print(
            f"training.steps={settings.steps:,} is less than training.warmup_steps="
            f"{settings.warmup_steps:,}, so the learning rate does not reach its maximum. For a "
            "short trial, set fewer warm-up steps",
            file=sys.stderr,
        )
    if resume and run.model_path.exists() and not run.checkpoints():
        raise UserError(
            f"{run.model_path} exists, but there is no checkpoint to resume from. To train on with "
            "these weights, start another run with the recipe key training.initial_run"
        )
    initial_run = None if resume and run.checkpoints() else run.initial_run()
    trainer = _new_trainer(recipe, initial_run, distribution)
    tokenizer = distribution.chief_first(lambda: _tokenizer(run, initial_run))
    sizes = {tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size}
    if sizes != {recipe.tokenizer.vocabulary_size}:
        raise UserError(
            f"{run.tokenizer_dir} must have the recipe's vocabulary sizes. Received: {sizes} and "
            f"tokenizer.vocabulary_size={recipe.tokenizer.vocabulary_size}"
        )
    plan, validation_batches = _batches(run, tokenizer, distribution, resume)
    if resume or not run.checkpoints():  # otherwise, `fit` raises an error
        distribution.chief_first(lambda: _record(run))
    patience = settings.early_stopping_patience
    history = fit(
        trainer,
        lambda count: plan.batches(count // settings.accumulation_steps),
        run.directory,
        steps=settings.steps,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        keep_best=recipe.evaluation.average_last if patience else 0,
        validation=TranslationValidation(run, tokenizer, validation_batches),
        patience=patience,
        callbacks=callbacks,
        seed=recipe.seed,
        resume=resume,
        hyperparameters=_hyperparameters(recipe),
        tokens=plan.tokens,
        distribution=distribution,
    )
    if distribution.is_chief:
        _write_model(run, history, tokenizer)
    distribution.barrier()


def _hyperparameters(recipe: Recipe) -> dict[str, bool | float | str]:
    """Returns the settings of tokenizer, model and training that have a value."""
    sections = ("tokenizer.", "model.", "training.")
    chosen = {name: x for name, x in recipe.settings().items() if name.startswith(sections)}
    return {name: x for name, x in chosen.items() if isinstance(x, bool | int | float | str)}


def _new_trainer(
    recipe: Recipe, initial_run: Run | None, distribution: Distribution
) -> SlicedLogitsTrainer:
    """Returns the trainer of a run, with random weights or those of `initial_run`.

    Raises:
        UserError: If the recipe describes no model that can be trained, or that can begin with the
            weights of `initial_run`.
    """
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    with distribution.making():
        try:
            trainer = new_trainer(recipe, distribution)
            _check_positions(recipe, trainer.model)
        except (TypeError, ValueError) as error:
            raise UserError(f"the recipe {recipe.name} cannot be trained: {error}") from error
        if initial_run:
            _load_initial_weights(initial_run, trainer.model)
    return trainer


def _check_positions(recipe: Recipe, model: Any) -> None:
    """Raises `ValueError` if the model has too few positions for the longest sentence."""
    length, _ = longest_lengths(recipe)
    most = getattr(getattr(model, "positions", None), "max_length", length)
    if length > most:
        raise ValueError(
            f"`data.max_length` with eos and padding must be at most {most}, because "
            f"model.max_length={most}. Received: data.max_length={recipe.data.max_length}, which "
            f"makes up to {length} tokens"
        )


def new_trainer(recipe: Recipe, distribution: Distribution | None = None) -> SlicedLogitsTrainer:
    """Returns the compiled trainer for a recipe, with random weights."""
    settings, size = recipe.training, recipe.tokenizer.vocabulary_size
    model = ARCHITECTURES[recipe.model.architecture].of_size(
        recipe.model.preset,
        size,
        target_vocabulary_size=None if recipe.tokenizer.joint else size,
        pad_id=PAD_ID,
        dtype=settings.dtype_policy,
        **recipe.model.overrides,
    )
    trainer = SlicedLogitsTrainer(
        model,
        MaskedCrossentropy(settings.label_smoothing, model.pad_id, reduction="sum"),
        settings.logits_mebibytes,
        settings.r_drop,
        settings.gradient_checkpointing,
        distribution,
    )
    trainer.compile(_optimizer(recipe, model), jit_compile=settings.jit_compile)
    return trainer


def _optimizer(recipe: Recipe, model: Any) -> TransformerAdam:
    settings = recipe.training
    peak = settings.peak_learning_rate
    schedule = TransformerSchedule(
        d_model=model.d_model if peak is None else None,
        warmup_steps=settings.warmup_steps,
        peak=peak,
        scale=settings.learning_rate_scale,
    )
    accumulation = settings.accumulation_steps
    return TransformerAdam(
        schedule,
        beta_1=settings.adam_beta_1,
        beta_2=settings.adam_beta_2,
        epsilon=settings.adam_epsilon,
        global_clipnorm=settings.global_clipnorm,
        use_ema=settings.ema_momentum is not None,
        ema_momentum=settings.ema_momentum or 0.0,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
    )


def _load_initial_weights(run: Run, model: Any) -> None:
    initial = open_model(run)
    trained, given = _settings(initial), _settings(model)
    for name in {**trained, **given}:
        if trained.get(name) != given.get(name):
            raise UserError(
                f"training.initial_run: {run.model_path} was trained with {name}="
                f"{trained.get(name)}, and the recipe has {name}={given.get(name)}. Copy the "
                f"section `model` from {run.recipe_path}"
            )
    try:
        model.set_weights(initial.get_weights())
    except ValueError as error:
        raise UserError(
            f"training.initial_run: the weights of {run.model_path} do not fit the recipe's "
            f"section `model`: {error}"
        ) from error


def _settings(model: Any) -> dict[str, Any]:
    """Returns the settings that change the weights of a model or what it computes with them."""
    others = {"name", "trainable", "dtype", "dropout_rate", "attention_dropout_rate"}
    others |= {"num_decoder_layers", "d_k"}  # None means the value of another setting.
    if not hasattr(getattr(model, "positions", None), "max_length"):
        others.add("max_length")
    return {name: value for name, value in model.get_config().items() if name not in others}


def _tokenizer(run: Run, initial_run: Run | None) -> Tokenizer:
    if run.tokenizer_dir.is_dir():
        return run.tokenizer()
    if initial_run:
        tokenizer = initial_run.tokenizer()
    else:
        print("Training the tokenizer.", file=sys.stderr)
        settings = run.recipe.tokenizer.model_dump()
        tokenizer = Tokenizer.train(run.text.pairs("train"), **settings)
    tokenizer.save(run.tokenizer_dir)
    return tokenizer


def _batches(
    run: Run, tokenizer: Tokenizer, distribution: Distribution, resume: bool
) -> tuple[BatchPlan, list[Batch]]:
    """Returns the batch plan of the training text, and the batches of the validation text."""
    settings = run.recipe.training
    plan = BatchPlan(
        _store("train", run, tokenizer, distribution, resume),
        settings.tokens_per_batch,
        seed=run.recipe.seed,
        accumulation_steps=settings.accumulation_steps,
        length_multiple=settings.length_multiple,
        shard=distribution.shard,
    )
    validation_text = _store("validation", run, tokenizer, distribution, resume)
    sizes = settings.tokens_per_batch, settings.length_multiple
    return plan, evaluation_batches(validation_text, *sizes)


def _store(
    split: Split, run: Run, tokenizer: Tokenizer, distribution: Distribution, resume: bool
) -> TokenStore:
    def build() -> TokenStore:
        folder, length = run.store_dir / split, run.recipe.data.max_length
        kept = run.text.fingerprints().get(split) if resume else None
        return TokenStore.build(folder, run.text.pairs(split), tokenizer, length, fingerprint=kept)

    store = distribution.chief_first(build)
    if distribution.is_chief:
        run.text.add_fingerprint(split, store.fingerprint)
        print(f"{split}: {store.report}")
    return store


def _record(run: Run) -> None:
    """Records backend and changed settings, with the step from which they take effect."""
    checkpoint = newest_checkpoint(run.checkpoints_dir)
    step = checkpoint_step(checkpoint) if checkpoint else 0
    history, backend = run.history(), keras.config.backend()
    changes: dict[str, tuple[Any, Any]] = run.record(step, backend)
    if history and history[-1]["backend"] != backend:
        changes = {"the backend": (history[-1]["backend"], backend), **changes}
    for key, (before, after) in changes.items():
        print(f"changed from step {step:,} on: {key} was {before!r} and is now {after!r}")


def _write_model(run: Run, history: ValidationHistory, tokenizer: Tokenizer) -> None:
    """Averages checkpoints into `model.keras`, if it is missing or older than a checkpoint."""
    average_last = run.recipe.evaluation.average_last
    patience = run.recipe.training.early_stopping_patience
    averaged = read_member(run.model_path, AVERAGE_LAST_MEMBER)
    if run.has_current_model() and averaged in (None, str(average_last)):
        why, larger = "", "training.steps"
        if history.is_over(patience):
            larger = "training.early_stopping_patience"
            why = f" by {larger}={patience}"
        print(
            f"the run {run.directory} is finished{why}, so {run.model_path} is not changed. "
            f"To train on, resume it with a larger {larger}"
        )
        return
    chosen = _chosen(run, history)
    if len(chosen) > 1:
        print("Averaging checkpoints.", file=sys.stderr)
    model = write_average(run, chosen, tokenizer.fingerprint)
    _write_embeddings(run, model, tokenizer)
    average = "average" if len(chosen) > 1 else "model"
    print(f"{run.model_path} is the {average} of {_names(chosen)}")
    losses = [history.losses.get(checkpoint_step(path), math.nan) for path in chosen]
    first, last = losses[0], losses[-1]
    if chosen[-1] == run.checkpoints()[-1] and last == min(losses) and first - last > _STEEP:
        print(
            f"The validation loss still fell from {first:.4g} to {last:.4g} over these "
            f"checkpoints. The newest alone may be better: {run.command('average', '--last 1')}"
        )


def write_average(run: Run, checkpoints: list[Path], fingerprint: str) -> Any:
    """Writes and returns the average of checkpoints as the finished model of a run.

    An earlier finished model is copied to `model.previous.keras`. `fingerprint` is that of the
    run's tokenizer. The file also holds the hash of the newest checkpoint and the setting
    `evaluation.average_last`, so that a resumed training knows whether they changed.
    """
    newest = read_state(run.checkpoints()[-1])["sha256"][CHECKPOINT_MODEL]
    with run.writing():
        return average_checkpoints(
            checkpoints,
            run.model_path,
            run.directory / "model.previous.keras",
            {
                TOKENIZER_MEMBER: fingerprint,
                CHECKPOINT_MEMBER: newest,
                AVERAGE_LAST_MEMBER: str(run.recipe.evaluation.average_last),
            },
        )


def _write_embeddings(run: Run, model: Any, tokenizer: Tokenizer) -> None:
    """Writes the embeddings of the first tokens of the vocabularies for TensorBoard."""
    sides = {
        "source": (model.source_embedding, tokenizer.source_pieces),
        "target": (model.target_embedding, tokenizer.target_pieces),
    }
    if tokenizer.joint:
        sides = {"joint": sides["source"]}
    embeddings = {
        side: (keras.ops.convert_to_numpy(layer.embeddings[:_PROJECTED]), pieces[:_PROJECTED])
        for side, (layer, pieces) in sides.items()
    }
    write_projector(run.logs_dir, embeddings)


def _chosen(run: Run, history: ValidationHistory) -> list[Path]:
    """Returns the checkpoints to average into `model.keras`."""
    patience = run.recipe.training.early_stopping_patience
    count = run.recipe.evaluation.average_last
    warmup_steps = run.recipe.training.warmup_steps
    if patience is None:
        paths = run.checkpoints()[-count:]
        return _after_warmup(paths, warmup_steps, paths[-1])
    (best,), last = best_checkpoints(run.checkpoints(), history, 1), max(history.losses)
    steps, loss = run.recipe.training.steps, history.losses[checkpoint_step(best)]
    reason = "the last step" if last == steps else f"a callback stopped it before step {steps:,}"
    if history.is_over(patience):
        reason = f"{patience} checkpoints without a lower validation loss"
    print(
        f"Training ended at step {last:,}: {reason}. The best checkpoint is {best.name}, "
        f"with a validation loss of {loss:.4f} nats per token"
    )
    return _after_warmup(best_checkpoints(run.checkpoints(), history, count), warmup_steps, best)


def _after_warmup(paths: list[Path], warmup_steps: int, kept: Path) -> list[Path]:
    """Leaves out checkpoints of the warm-up, but never the checkpoint `kept`."""
    early = [path for path in paths if checkpoint_step(path) < warmup_steps and path != kept]
    if early:
        print(f"not averaged, because training.warmup_steps={warmup_steps:,}: {_names(early)}")
    return [path for path in paths if path not in early]


def _names(checkpoints: list[Path]) -> str:
    return ", ".join(path.name for path in checkpoints)
