"""Trains and validates a translation model as a recipe describes it."""

import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras

from keras_transformer._backend import without_tensorflow
from keras_transformer._backend.compile_function import is_on_cpu
from keras_transformer._files import read_json, sha256_of
from keras_transformer.data import BatchPlan, Tokenizer, TokenStore, evaluation_batches
from keras_transformer.data.batch_plan import Batch
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.tokenizer import PAD_ID
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.evaluation.run_evaluation import bleu
from keras_transformer.models import ARCHITECTURES
from keras_transformer.models.crossentropy import MaskedCrossentropy
from keras_transformer.recipe.settings import Recipe, longest_lengths
from keras_transformer.runs import checkpoints
from keras_transformer.runs.checkpoints import (
    ValidationHistory,
    best_checkpoints,
    checkpoint_step,
)
from keras_transformer.runs.run import Run
from keras_transformer.training.callbacks import CompileAhead
from keras_transformer.training.checkpoint import average_checkpoints
from keras_transformer.training.distribution import ONE_DEVICE, Distribution
from keras_transformer.training.fit_loop import evaluation_of, fit
from keras_transformer.training.made_text import make_text
from keras_transformer.training.optimizer import TransformerAdam, TransformerSchedule
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.tensorboard import write_projector
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator
from keras_transformer.visualization.attention import translation_attention
from keras_transformer.visualization.attention_pages import attention_image

# TensorBoard reads the vectors as text: these take 36 MB with 512 features.
_PROJECTED = 10_000

# Examples of translations, and the most tokens of a sentence whose attention is drawn. With 6
# layers and 8 heads, the image then has 23 MB before compression.
_SAMPLES, _MOST_DRAWN = 5, 50

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
    _check(recipe, keras.config.backend())
    if recipe.training.distribution == "none":
        return ONE_DEVICE
    return Distribution.all_devices(recipe.training.model_shards)


def _check(recipe: Recipe, backend: str) -> None:
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
        # Each replica would use the statistics of its own tokens, or a loss scale of its own.
        "model.normalization=batch": recipe.model.normalization == "batch",
        "training.dtype_policy=mixed_float16": training.dtype_policy == "mixed_float16",
    }
    found = [name for name, is_set in unsupported.items() if is_set]
    if found and kind != "none" and backend != "jax":
        raise UserError(
            f"{backend} cannot train on several devices with {' and '.join(found)}: choose another "
            "setting, or KERAS_BACKEND=jax"
        )


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


def _train(run: Run, resume: bool, callbacks: list[Any], distribution: Distribution) -> None:
    recipe, settings = run.recipe, run.recipe.training
    if resume and run.model_path.exists() and not run.checkpoints():
        raise UserError(
            f"{run.model_path} exists, but there is no checkpoint to resume from. To train on with "
            "these weights, start another run with the recipe key training.initial_run"
        )
    initial_run = None if resume and run.checkpoints() else run.other_run("initial_run")
    trainer = _make_trainer(recipe, initial_run, distribution)
    tokenizer, training_text, validation_text = distribution.chief_first(
        lambda: _prepare(run, initial_run, resume, distribution.is_chief)
    )
    vars(trainer.model)["tokenizer_files"] = tokenizer.files  # Checkpoints keep them.
    alpha = settings.subword_regularization
    plan = BatchPlan(
        training_text,
        settings.tokens_per_batch,
        seed=recipe.seed,
        accumulation_steps=settings.accumulation_steps,
        length_multiple=settings.length_multiple,
        shard=distribution.shard,
        weights=[corpus.weight for corpus in recipe.data.corpora("train")],
        sampler=None if alpha is None else PieceSampler(tokenizer, alpha),
    )
    validation_batches = evaluation_batches(
        validation_text, settings.tokens_per_batch, settings.length_multiple
    )
    if _compiles_ahead(trainer):
        callbacks = [*callbacks, CompileAhead(plan.padding(settings.steps))]
    chosen = {
        name: value
        for name, value in recipe.settings().items()
        if name.startswith(("tokenizer.", "model.", "training."))
        and isinstance(value, bool | int | float | str)
    }
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
        hyperparameters=chosen,
        tokens=plan.tokens,
        distribution=distribution,
    )
    # The other processes wait until the model is written.
    distribution.chief_first(
        lambda: _write_model(run, history, tokenizer) if distribution.is_chief else None
    )


def _compiles_ahead(trainer: Any) -> bool:
    """Returns whether all shapes of batches are compiled at the start: on one GPU of JAX."""
    is_alone = type(trainer.distribution) is Distribution
    return keras.config.backend() == "jax" and is_alone and trainer.jit_compile and not is_on_cpu()


def _make_trainer(recipe: Recipe, initial_run: Run | None, distribution: Distribution) -> Any:
    """Returns the trainer of a run, with random weights or those of `initial_run`."""
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    with distribution.making():
        try:
            trainer = new_trainer(recipe, distribution)
            length = longest_lengths(recipe)[0]
            for most in map(_positions, (trainer.model, trainer.teacher)):
                if most is not None and length > most:
                    raise ValueError(
                        "`data.max_length` with eos and padding must be at most model.max_length="
                        f"{most}, also that of the teacher's run. "
                        f"Received: data.max_length={recipe.data.max_length}: {length} tokens"
                    )
        except (TypeError, ValueError) as error:
            raise UserError(f"the recipe {recipe.name} cannot be trained: {error}") from error
        if initial_run:
            _load_initial_weights(initial_run, trainer.model)
    return trainer


def _positions(model: Any) -> int | None:
    """Returns the number of positions of a model with learned positions, otherwise None."""
    return getattr(getattr(model, "positions", None), "max_length", None)


def new_trainer(recipe: Recipe, distribution: Distribution = ONE_DEVICE) -> SlicedLogitsTrainer:
    """Returns the compiled trainer for a recipe, with random weights. Opens the teacher, if any."""
    settings, size = recipe.training, recipe.tokenizer.vocabulary_size
    model = ARCHITECTURES[recipe.model.architecture].of_size(
        recipe.model.preset,
        size,
        target_vocabulary_size=None if recipe.tokenizer.joint else size,
        pad_id=PAD_ID,
        dtype=settings.dtype_policy,
        **recipe.model.overrides,
    )
    loss = MaskedCrossentropy(settings.label_smoothing, model.pad_id, reduction="sum")
    names = {"logits_mebibytes", "r_drop", "simcut", "simcut_rate", "gradient_checkpointing"}
    options = settings.model_dump(include=names | {"teacher_weight"})
    if settings.teacher:
        options["teacher"] = open_model(Run.open(settings.teacher))
    trainer = SlicedLogitsTrainer(model, loss, distribution=distribution, **options)
    peak, accumulation = settings.peak_learning_rate, settings.accumulation_steps
    schedule = TransformerSchedule(
        d_model=model.d_model if peak is None else None,
        warmup_steps=settings.warmup_steps,
        peak=peak,
        scale=settings.learning_rate_scale,
        cosine_steps=settings.cosine_steps,
    )
    optimizer = TransformerAdam(
        schedule,
        beta_1=settings.adam_beta_1,
        beta_2=settings.adam_beta_2,
        epsilon=settings.adam_epsilon,
        global_clipnorm=settings.global_clipnorm,
        use_ema=settings.ema_momentum is not None,
        ema_momentum=settings.ema_momentum or 0.0,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
        weight_decay=settings.weight_decay or None,
    )
    vectors = [x for x in model.trainable_variables if len(x.shape) < 2]
    optimizer.exclude_from_weight_decay(vectors)
    trainer.compile(optimizer, jit_compile=settings.jit_compile)
    return trainer


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
    model.set_weights(initial.get_weights())


def _settings(model: Any) -> dict[str, Any]:
    """Returns the settings that change the weights of a model or what it computes with them."""
    others = {"name", "trainable", "dtype", "dropout_rate", "attention_dropout_rate"}
    others |= {"num_decoder_layers", "d_k"}  # None means the value of another setting.
    if _positions(model) is None:
        others.add("max_length")
    return {name: value for name, value in model.get_config().items() if name not in others}


def _prepare(run: Run, initial_run: Run | None, resume: bool, is_chief: bool) -> tuple[Any, ...]:
    """Returns the tokenizer, and the encoded training and validation text. The chief makes them."""
    if is_chief:
        make_text(run)
    teacher = run.other_run("teacher")
    tokenizer = _tokenizer(run, initial_run or teacher)
    sizes = {tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size}
    if sizes != {run.recipe.tokenizer.vocabulary_size}:
        raise UserError(
            f"{run.tokenizer_dir} must have the recipe's vocabulary sizes. Received: {sizes} and "
            f"tokenizer.vocabulary_size={run.recipe.tokenizer.vocabulary_size}"
        )
    if teacher:
        _check_teacher(run, teacher, tokenizer, resume, is_chief)
    stores = []
    for split in ("train", "validation"):
        folder, length = run.store_dir / split, run.recipe.data.max_length
        kept = run.text.fingerprints().get(split) if resume else None
        pairs = run.text.pairs(split)
        store = TokenStore.build(folder, pairs, tokenizer, length, fingerprint=kept)
        if is_chief:
            run.text.add_fingerprint(split, store.fingerprint)
            print(f"{split}: {store.report}")
        stores.append(store)
    if is_chief and (resume or not run.checkpoints()):  # otherwise, `fit` raises an error
        step = max(map(checkpoint_step, run.checkpoints()), default=0)
        history, backend = run.history(), keras.config.backend()
        changes: dict[str, tuple[Any, Any]] = run.record(step, backend)
        if history and history[-1]["backend"] != backend:
            changes = {"the backend": (history[-1]["backend"], backend), **changes}
        for key, (before, after) in changes.items():
            print(f"changed from step {step:,} on: {key} was {before!r} and is now {after!r}")
    return tokenizer, *stores


def _check_teacher(
    run: Run, teacher: Run, tokenizer: Tokenizer, resume: bool, is_chief: bool
) -> None:
    """Raises `UserError` if the teacher has another tokenizer, or another model than before."""
    digest = sha256_of(teacher.model_path)
    kept = run.text.fingerprints().get("teacher") if resume else None
    if teacher.tokenizer().fingerprint != tokenizer.fingerprint or kept not in (None, digest):
        raise UserError(
            f"training.teacher: {teacher.directory} must have the tokenizer of this run and, when "
            "the run resumes, the model with which it began. Received: another "
            f"{'tokenizer' if kept in (None, digest) else 'model'}"
        )
    if is_chief:
        run.text.add_fingerprint("teacher", digest)


def _tokenizer(run: Run, other_run: Run | None) -> Tokenizer:
    if run.tokenizer_dir.is_dir():
        return run.tokenizer()
    if other_run:
        tokenizer = other_run.tokenizer()
    else:
        print("Training the tokenizer.", file=sys.stderr)
        settings = run.recipe.tokenizer.model_dump()
        tags = {x.tag: None for x in run.recipe.data.corpora("train") if x.tag}
        tokenizer = Tokenizer.train(run.text.pairs("train", tagged=False), **settings, tags=tags)
    tokenizer.save(run.tokenizer_dir)
    return tokenizer


class TranslationValidation:
    """Validates the model of a `SlicedLogitsTrainer` on the validation split of a run.

    An instance is the argument `validation` of `fit`. The results are loss (without label
    smoothing), perplexity and accuracy over the real target tokens of `batches`. Greedy search also
    translates the first `training.validation_bleu_sentences` sentences of the split, if any. The
    results then also contain `"bleu"`, in percent, `"translations"`, a Markdown table with a few
    examples, and the attention of the first pair of at most 50 tokens a side, if the model has any:
    an image of all heads for each kind, such as `"attention/cross"`, and the tokens of its rows and
    columns as `"attention/tokens"`.
    """

    def __init__(self, run: Run, tokenizer: Any, batches: Sequence[Batch]) -> None:
        self.tokenizer = tokenizer
        self.bleu_settings = run.recipe.bleu_settings
        count = run.recipe.training.validation_bleu_sentences
        self.pairs = list(itertools.islice(run.text.pairs("validation"), count))
        if self.pairs:
            bleu(
                ["a"], ["a"], **self.bleu_settings
            )  # raises `UserError` if its tokenizer is missing
        self._evaluate = evaluation_of(batches)
        self._translator: Translator | None = None

    def __call__(self, trainer: Any, step: int) -> dict[str, Any]:
        found = dict(self._evaluate(trainer, step))
        found["loss"] = float(trainer.perplexity.crossentropy())
        if not self.pairs:
            return found
        if self._translator is None:
            self._translator = Translator(trainer.model, self.tokenizer, SearchOptions(beam_size=1))
        sources, references = (list(side) for side in zip(*self.pairs, strict=True))
        translations = self._translator.translate(sources)
        score = bleu(translations, references, **self.bleu_settings)
        rows = list(zip(sources, references, translations, strict=True))[:_SAMPLES]
        table = _table(("source", "reference", "translation"), rows)
        return {**found, "bleu": score, "translations": table, **self._attention()}

    def _attention(self) -> dict[str, Any]:
        """Draws the attention of the first pair that makes a picture of a modest size."""
        encode, encode_target = self.tokenizer.encode_source, self.tokenizer.encode_target
        pairs = (
            (source, target)
            for source, target in self.pairs
            if len(encode([source])[0]) <= _MOST_DRAWN >= len(encode_target([target])[0])
        )
        try:
            example = translation_attention(self._translator, *next(pairs))
        except (StopIteration, UserError):
            return {}
        tokens = [(kind, *map(" ".join, example.tokens[kind])) for kind in example.kinds]
        return {
            "attention/tokens": _table(("attention", "rows", "columns"), tokens),
            **{f"attention/{kind}": attention_image(example, kind) for kind in example.kinds},
        }


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown, in which the texts are no Markdown."""
    special = str.maketrans({character: f"&#{ord(character)};" for character in r"\`*_|"})
    cells = ([text.translate(special) for text in row] for row in rows)
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _write_model(run: Run, history: ValidationHistory, tokenizer: Tokenizer) -> None:
    """Averages checkpoints into `model.keras`, unless it is already their average."""
    averaged = checkpoints.read_member(run.model_path, checkpoints.AVERAGE_LAST_MEMBER)
    if run.has_current_model() and averaged in (None, str(run.recipe.evaluation.average_last)):
        is_over = history.is_over(run.recipe.training.early_stopping_patience)
        larger = "early_stopping_patience" if is_over else "steps"
        print(
            f"the run {run.directory} is finished, so {run.model_path} is not changed. "
            f"To train on, resume it with a larger training.{larger}"
        )
        return
    chosen = _chosen(run, history)
    _write_embeddings(run, write_average(run, chosen), tokenizer)
    average = "average" if len(chosen) > 1 else "model"
    print(f"{run.model_path} is the {average} of {_names(chosen)}")


def write_average(run: Run, paths: list[Path]) -> Any:
    """Writes and returns the average of checkpoints as the finished model of a run.

    An earlier finished model is copied to `model.previous.keras`. The file also holds the
    fingerprint of the tokenizer and, so that a resumed training knows whether they changed, the
    hash of the newest checkpoint and the setting `evaluation.average_last`.
    """
    newest = read_json(run.checkpoints()[-1] / checkpoints.STATE)["sha256"]
    fingerprint = checkpoints.read_member(run.model_path, checkpoints.TOKENIZER_MEMBER)
    members = {
        checkpoints.TOKENIZER_MEMBER: fingerprint or run.tokenizer().fingerprint,
        checkpoints.CHECKPOINT_MEMBER: newest[checkpoints.CHECKPOINT_MODEL],
        checkpoints.AVERAGE_LAST_MEMBER: str(run.recipe.evaluation.average_last),
    }
    previous = run.directory / "model.previous.keras"
    with run.writing():
        return average_checkpoints(paths, run.model_path, previous, members)


def _write_embeddings(run: Run, model: Any, tokenizer: Tokenizer) -> None:
    """Writes the embeddings of the first tokens of the vocabularies for TensorBoard."""
    source = (model.source_embedding, tokenizer.source_pieces)
    target = (model.target_embedding, tokenizer.target_pieces)
    is_shared = model.source_embedding is model.target_embedding
    sides = {"joint": source} if is_shared else {"source": source, "target": target}
    embeddings = {
        side: (keras.ops.convert_to_numpy(layer.embeddings[:_PROJECTED]), pieces[:_PROJECTED])
        for side, (layer, pieces) in sides.items()
    }
    write_projector(run.logs_dir, embeddings)


def _chosen(run: Run, history: ValidationHistory) -> list[Path]:
    """Returns the checkpoints to average into `model.keras`, without those of the warm-up."""
    settings, paths = run.recipe.training, run.checkpoints()
    count = run.recipe.evaluation.average_last
    chosen, kept = paths[-count:], paths[-1]
    if (patience := settings.early_stopping_patience) is not None:
        chosen = best_checkpoints(paths, history, count)
        (kept,) = best_checkpoints(paths, history, 1)
        reason = f"{patience} checkpoints without a lower validation loss, "
        print(
            f"Training ended after {reason if history.is_over(patience) else ''}{paths[-1].name}. "
            f"The best checkpoint is {kept.name}, with a validation loss of "
            f"{history.losses[checkpoint_step(kept)]:.4f} nats per token"
        )
    warmup = settings.warmup_steps
    early = [path for path in chosen if checkpoint_step(path) < warmup and path != kept]
    if early:
        print(f"not averaged, because training.warmup_steps={warmup:,}: {_names(early)}")
    return [path for path in chosen if path not in early]


def _names(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths)
