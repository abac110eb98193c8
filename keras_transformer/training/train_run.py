"""Trains a translation model from a recipe."""

import math
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer._backend.process import without_tensorflow
from keras_transformer.data import BatchPlan, Tokenizer, TokenStore, evaluation_batches
from keras_transformer.data.batch_plan import Batch
from keras_transformer.data.tokenizer import PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.evaluation.scores import bleu
from keras_transformer.layers.changes import layer_changes
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.settings import Recipe
from keras_transformer.recipe.token_budget import available_mebibytes
from keras_transformer.runs.checkpoints import checkpoint_step
from keras_transformer.runs.model_file import AVERAGE_LAST_MEMBER, read_member
from keras_transformer.runs.run import Run
from keras_transformer.runs.text import Split
from keras_transformer.runs.validation_history import (
    ValidationHistory,
    best_checkpoints,
    load_history,
)
from keras_transformer.training.checkpoint import average_checkpoints, newest_checkpoint
from keras_transformer.training.crossentropy import MaskedCrossentropy
from keras_transformer.training.distribution import Distribution, start
from keras_transformer.training.fit_loop import fit
from keras_transformer.training.optimizer import TransformerAdam, TransformerSchedule
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.tensorboard import write_projector
from keras_transformer.training.validation import TranslationValidation
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator

# TensorBoard reads the vectors as text: these take 36 MB with 512 features.
_PROJECTED = 10_000

# Validation losses of averaged checkpoints that differ by more nats per token tell that training
# has not levelled off.
_STEEP = 0.1


def train(
    run: Run, resume: bool = False, callbacks: list[keras.callbacks.Callback] | None = None
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

    Raises:
        UserError: If the recipe, the text or a checkpoint cannot be used. If another process trains
            in the run's folder. If the text of a resumed run has changed. If a resumed run has a
            model but no checkpoint. If the loss or a weight becomes infinite or NaN. If the disk is
            full.
    """
    distribution = start(run.recipe)
    with distribution.training_lock(run.directory):
        _train(run, resume, callbacks or [], distribution)


def _train(
    run: Run,
    resume: bool,
    callbacks: list[keras.callbacks.Callback],
    distribution: Distribution,
) -> None:
    recipe, settings = run.recipe, run.recipe.training
    check_settings(recipe)
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
    writing = run.writing()
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    tokenizer = distribution.chief_first(lambda: _tokenizer(run))
    with distribution.making():
        trainer = new_trainer(recipe, tokenizer, distribution)
        initial_run = None if resume and run.checkpoints() else run.initial_run()
        if initial_run:
            _load_initial_weights(initial_run, trainer.model)
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
        with writing:
            _write_model(run, history, tokenizer)
    local = distribution.local(trainer)
    write = distribution.on_chief(lambda found, *_: _write_embeddings(run, found.model), local)
    write(trainer, settings.steps, {})
    distribution.barrier()


def _hyperparameters(recipe: Recipe) -> dict[str, bool | float | str]:
    """Returns the settings of tokenizer, model and training that have a value."""
    settings = recipe.settings()
    sections = ("tokenizer.", "model.", "training.")
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(sections) and isinstance(value, bool | int | float | str)
    }


def check_settings(recipe: Recipe) -> None:
    """Checks the settings of a recipe before training.

    The function builds a model with one small layer and computes a BLEU score.

    Raises:
        UserError: If the model cannot be built or does not fit into memory. If `data.max_length` or
            a length in `evaluation` is too large for the model. If `training.r_drop` has no dropout
            to compare. If the model does not support gradient checkpointing or a coverage penalty.
            If the tokenizer for BLEU is not installed.
    """
    sizes, vocabulary = recipe.model.sizes, recipe.tokenizer.vocabulary_size
    width, layers = sizes["d_model"], sizes.get("num_layers", 1)
    weights = sizes.get("d_embedding", width) * vocabulary
    weights += layers * width * (width + sizes.get("d_ff", width))
    needed, available = 4 * weights / 2**20, available_mebibytes()
    if needed > available:
        raise UserError(
            f"model and tokenizer.vocabulary_size: the weights need at least {needed:,.0f} MiB of "
            f"memory, but only {available:,.0f} MiB are available"
        )
    multiple = recipe.training.length_multiple
    length = -(-(recipe.data.max_length + 1) // multiple) * multiple
    small = {name: 1 for name in ("num_layers", "num_decoder_layers", "d_ff") if sizes.get(name)}
    try:
        model = _new_model(recipe, 8, None, **small)
        model.init_cache(np.ones((1, 2), "int32"), length)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"model: the model cannot be built for sequences of {length} tokens (data.max_length, "
            f"eos and padding): {error}"
        ) from None
    rates = [getattr(model, f"{of}dropout_rate", 0) for of in ("", "attention_")]
    if recipe.training.r_drop and not any(rates):
        raise UserError(
            "training.r_drop compares the outputs under two dropout masks, so it has no effect "
            f"without model.dropout_rate. Received: r_drop={recipe.training.r_drop:g}"
        )
    try:
        trainer = SlicedLogitsTrainer(
            model, gradient_checkpointing=recipe.training.gradient_checkpointing
        )
        trainer.compile(_optimizer(recipe, model), jit_compile=recipe.training.jit_compile)
    except ValueError as error:
        raise UserError(f"training: {error}") from None
    try:
        Translator(model, None, recipe.evaluation.search_options())
    except ValueError as error:
        raise UserError(f"evaluation: {error}") from None
    bleu(["a"], ["a"], recipe.evaluation)


def _record(run: Run) -> None:
    """Records backend and changed settings, with the step from which they take effect."""
    checkpoint = newest_checkpoint(run.checkpoints_dir)
    step = checkpoint_step(checkpoint) if checkpoint else 0
    history, backend = run.history(), keras.config.backend()
    recorded = history[-1].get("backend") if history else None
    if recorded and checkpoint and _has_all_steps(run, checkpoint):
        backend = recorded  # This process trains nothing.
    changes = run.record(step, backend)
    if recorded not in (None, backend):
        print(f"changed from step {step:,} on: the backend was {recorded} and is now {backend}")
    for key, (before, after) in changes.items():
        unread = key == "data.directory" and (run.directory / "text").is_dir()
        note = f"; the run reads its copy of the text in {run.directory / 'text'}" if unread else ""
        print(f"changed from step {step:,} on: {key} was {before!r} and is now {after!r}{note}")


def _has_all_steps(run: Run, checkpoint: Path) -> bool:
    settings = run.recipe.training
    is_over = load_history(checkpoint).is_over(settings.early_stopping_patience)
    return is_over or checkpoint_step(checkpoint) == settings.steps


def _write_model(run: Run, history: ValidationHistory, tokenizer: Tokenizer) -> None:
    """Averages checkpoints into `model.keras`, if it is missing or older than a checkpoint."""
    if run.has_current_model() and not _averages_again(run):
        patience = run.recipe.training.early_stopping_patience
        why, larger = "", "training.steps"
        if history.is_over(patience):
            larger = "training.early_stopping_patience"
            why = f" by {larger}={patience}"
        print(
            f"the run {run.directory} is finished{why}, so {run.model_path} is not changed. "
            f"To train on, resume it with a larger {larger}"
        )
        return
    previous, newest = run.directory / "model.previous.keras", run.checkpoints()[-1]
    chosen = _chosen(run, history)
    if len(chosen) > 1:
        print("Averaging checkpoints.", file=sys.stderr)
    average_checkpoints(
        chosen,
        run.model_path,
        previous,
        tokenizer.fingerprint,
        newest,
        run.recipe.evaluation.average_last,
    )
    average = "average" if len(chosen) > 1 else "model"
    print(f"{run.model_path} is the {average} of {_names(chosen)}")
    losses = [history.losses.get(checkpoint_step(path), math.nan) for path in chosen]
    first, last = losses[0], losses[-1]
    if chosen[-1] == newest and last == min(losses) and first - last > _STEEP:
        print(
            f"The validation loss still fell from {first:.4g} to {last:.4g} over these "
            f"checkpoints. The newest alone may be better: {run.command('average', '--last 1')}"
        )


def _write_embeddings(run: Run, model: Any) -> None:
    """Writes the embeddings of the first tokens of the vocabularies for TensorBoard."""
    tokenizer = run.tokenizer()
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


def _averages_again(run: Run) -> bool:
    """Returns whether `evaluation.average_last` has changed since `model.keras` was written.

    The process that changed it may have been killed before it averaged.
    """
    if (written := read_member(run.model_path, AVERAGE_LAST_MEMBER)) is not None:
        return written != str(run.recipe.evaluation.average_last)
    # Models of older releases do not tell. For them, the time of the file decides.
    changed = [x["time"] for x in run.history() if "evaluation.average_last" in x["changes"]]
    time = run.model_path.stat().st_mtime
    return any(datetime.fromisoformat(x).timestamp() > time for x in changed)


def _chosen(run: Run, history: ValidationHistory) -> list[Path]:
    """Returns the checkpoints to average into `model.keras`."""
    patience = run.recipe.training.early_stopping_patience
    count = run.recipe.evaluation.average_last
    warmup_steps = run.recipe.training.warmup_steps
    if patience is None:
        paths = run.checkpoints()[-count:]
        return _after_warmup(paths, warmup_steps, paths[-1])
    (best,), last = best_checkpoints(run.checkpoints(), history, 1), max(history.losses)
    steps = run.recipe.training.steps
    reason = "the last step" if last == steps else f"a callback stopped it before step {steps:,}"
    if history.is_over(patience):
        reason = f"{patience} checkpoints without a lower validation loss"
    loss = history.losses[checkpoint_step(best)]
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


def _tokenizer(run: Run) -> Tokenizer:
    if run.tokenizer_dir.is_dir():
        return run.tokenizer()
    if initial_run := run.initial_run():
        tokenizer = initial_run.tokenizer()
    else:
        settings, pairs = run.recipe.tokenizer, run.text.pairs("train")
        print("Training the tokenizer.", file=sys.stderr)
        tokenizer = Tokenizer.train(
            pairs,
            settings.vocabulary_size,
            model_type=settings.model_type,
            joint=settings.joint,
            normalization=settings.normalization,
        )
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
        if resume and kept is None and (folder / "meta.json").exists():  # of an older release
            kept = TokenStore(folder).fingerprint
        return TokenStore.build(folder, run.text.pairs(split), tokenizer, length, fingerprint=kept)

    store = distribution.chief_first(build)
    if distribution.is_chief:
        run.text.add_fingerprint(split, store.fingerprint)
        print(f"{split}: {store.report}")
    return store


def new_trainer(
    recipe: Recipe, tokenizer: Any, distribution: Distribution | None = None
) -> SlicedLogitsTrainer:
    """Returns the compiled trainer for a recipe and a tokenizer, with random weights."""
    settings = recipe.training
    target_size = None if tokenizer.joint else tokenizer.target_vocabulary_size
    model = _new_model(recipe, tokenizer.source_vocabulary_size, target_size)
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


def _new_model(recipe: Recipe, size: int, target_size: int | None, **changes: Any) -> Any:
    return ARCHITECTURES[recipe.model.architecture].of_size(
        recipe.model.preset,
        size,
        target_vocabulary_size=target_size,
        pad_id=PAD_ID,
        dtype=recipe.training.dtype_policy,
        **{**recipe.model.overrides, **changes},
    )


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
    if any({"quantization", "lora_rank"} & own.keys() for own in layer_changes(initial).values()):
        raise UserError(
            f"training.initial_run: {run.model_path} is quantized or has LoRA, so a training "
            "cannot begin with its weights. Give another run"
        )
    weights = initial.get_weights()
    found, needed = ([weight.shape for weight in some] for some in (weights, model.weights))
    if found != needed:
        raise UserError(
            f"training.initial_run: the shapes of the weights in {run.model_path} do not match the "
            f"recipe's section `model`. Copy this section from {run.recipe_path}"
        )
    trained, given = _settings_without_shapes(initial), _settings_without_shapes(model)
    for name, value in given.items():
        if trained[name] != value:
            raise UserError(
                f"training.initial_run: {run.model_path} was trained with {name}={trained[name]}, "
                f"and the recipe has {name}={value}. Copy the section `model` from "
                f"{run.recipe_path}"
            )
    model.set_weights(weights)


def _settings_without_shapes(model: Any) -> dict[str, Any]:
    """Returns the settings that change the outputs of a model but no shape of its weights."""
    others = {"name", "trainable", "dtype", "changes", "dropout_rate", "attention_dropout_rate"}
    others |= {"num_decoder_layers", "d_k"}  # change shapes, and may be None
    if not hasattr(getattr(model, "positions", None), "max_length"):
        others.add("max_length")
    return {name: value for name, value in model.get_config().items() if name not in others}
