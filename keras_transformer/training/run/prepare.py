"""Prepares a training: the model and its trainer, the tokenizer, and the batches."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer._backend import without_tensorflow
from keras_transformer._files import sha256_of
from keras_transformer.data import BatchPlan, Shard, Tokenizer, TokenStore, evaluation_batches
from keras_transformer.data.batch_plan import Batch
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.data.text_noise import TextNoise
from keras_transformer.data.tokenizer import PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.layers.saving import merged_weights
from keras_transformer.models import ARCHITECTURES
from keras_transformer.models.crossentropy import MaskedCrossentropy
from keras_transformer.recipe.sections import Data, Training
from keras_transformer.recipe.settings import LANGUAGE_MODEL, TRANSLATION, Recipe
from keras_transformer.runs.checkpoints import checkpoint_step
from keras_transformer.runs.run import Run
from keras_transformer.runs.text import Split
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution
from keras_transformer.training.run.translate_corpora import translate_corpora
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.step.optimizer import OPTIMIZERS, TransformerSchedule
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.word_forms import WordForms

SPLITS: tuple[Split, ...] = ("train", "validation")


def prepare(
    run: Run, resume: bool, distribution: Distribution
) -> tuple[SlicedLogitsTrainer, Tokenizer, BatchPlan, Sequence[Batch]]:
    """Returns the trainer, the tokenizer, the plan of batches, and the batches for validation.

    The chief makes the tokenizer and the encoded text, before the others read them.
    """
    has_begun = resume and bool(run.checkpoints())
    if resume and run.model_path.exists() and not has_begun:
        raise UserError(
            f"{run.model_path} exists, but there is no checkpoint to resume from. To train on with "
            "these weights, start another run with the recipe key training.initial_run"
        )
    initial_run = None if has_begun else run.other_run("initial_run")
    teacher = run.other_run("teacher")
    trainer = _trainer(run.recipe, initial_run, teacher, distribution)
    tokenizer, (training_text, validation_text) = distribution.chief_first(
        lambda: _text(run, initial_run or teacher, teacher, resume, distribution.is_chief)
    )
    vars(trainer.model)["tokenizer_files"] = tokenizer.files  # Checkpoints keep them.
    plan = _plan(run.recipe, training_text, tokenizer, distribution.shard)
    sizes = run.recipe.training.tokens_per_batch, run.recipe.length_multiple
    return trainer, tokenizer, plan, evaluation_batches(validation_text, *sizes)


def _text(
    run: Run, other_run: Run | None, teacher: Run | None, resume: bool, is_chief: bool
) -> tuple[Tokenizer, list[TokenStore]]:
    """Returns the tokenizer, and the encoded text of `SPLITS`. The chief makes what is missing."""
    if is_chief:
        translate_corpora(run)
    tokenizer, length, stores = _tokenizer(run, other_run), run.recipe.data.max_length, []
    # A resumed run must have the teacher and the text with which it began.
    kept = run.text.fingerprints() if resume else {}
    if teacher:
        digest = _checked_teacher(teacher, tokenizer, kept.get("teacher"))
        if is_chief:
            run.text.add_fingerprint("teacher", digest)
    for split in SPLITS:
        folder, pairs = run.store_dir / split, run.text.pairs(split)
        store = TokenStore.build(folder, pairs, tokenizer, length, fingerprint=kept.get(split))
        if is_chief:
            run.text.add_fingerprint(split, store.fingerprint)
            print(f"{split}: {store.report}")
        stores.append(store)
    if is_chief and run.recipe.task is TRANSLATION and not run.word_forms_path.exists():
        pairs = run.text.pairs("train", tagged=False)
        forms = WordForms.learn((source for source, _ in pairs), (target for _, target in pairs))
        forms.save(run.word_forms_path)
    if is_chief and (resume or not run.checkpoints()):  # otherwise, `fit` raises an error
        _record(run)
    return tokenizer, stores


def _plan(recipe: Recipe, text: TokenStore, tokenizer: Tokenizer, shard: Shard) -> BatchPlan:
    settings, alpha = recipe.training, recipe.training.subword_regularization
    samplers: list[TextNoise | PieceSampler] = []
    if settings.text_noise:
        samplers.append(TextNoise(tokenizer, settings.text_noise, settings.warmup_steps))
    if alpha is not None:
        samplers.append(PieceSampler(tokenizer, alpha))
    return BatchPlan(
        text,
        settings.tokens_per_batch,
        seed=recipe.seed,
        accumulation_steps=settings.accumulation_steps,
        length_multiple=recipe.length_multiple,
        shard=shard,
        weights=[corpus.weight for corpus in recipe.data.corpora("train")],
        samplers=samplers,
        packing=settings.packing,
    )


def _tokenizer(run: Run, other_run: Run | None) -> Tokenizer:
    """Loads the tokenizer of a run. If there is none, copies that of another run or trains one."""
    if run.tokenizer_dir.is_dir():
        tokenizer = run.tokenizer()
    else:
        copied = other_run and in_languages(other_run.tokenizer(), run.recipe.data)
        tokenizer = copied or _trained_tokenizer(run)
        tokenizer.save(run.tokenizer_dir)
    sizes = {tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size}
    if sizes != {run.recipe.tokenizer.vocabulary_size}:
        raise UserError(
            f"{run.tokenizer_dir} must have the recipe's vocabulary sizes. Received: {sizes} and "
            f"tokenizer.vocabulary_size={run.recipe.tokenizer.vocabulary_size}"
        )
    return tokenizer


def in_languages(tokenizer: Tokenizer, data: Data) -> Tokenizer:
    """Returns a tokenizer whose texts begin with the languages of a recipe, if any do now.

    Raises `UserError` if its vocabulary has no piece for one of them.
    """
    if not tokenizer.begins_with_language:
        return tokenizer
    if data.both_directions:
        raise UserError(
            "data.both_directions must be false for texts that begin with the piece of a language. "
            "Received: true"
        )
    source = None if tokenizer.tag_ids else data.source_language
    return tokenizer.with_languages(source, data.target_language)


def _trained_tokenizer(run: Run) -> Tokenizer:
    print("Training the tokenizer.", file=sys.stderr)
    settings = run.recipe.tokenizer.model_dump()
    tags = {x.tag: None for x in run.recipe.data.corpora("train") if x.tag}
    settings |= {"tags": tags, "keep_spaces": run.recipe.task is LANGUAGE_MODEL}
    return Tokenizer.train(run.text.pairs("train", tagged=False), **settings)


def _checked_teacher(teacher: Run, tokenizer: Tokenizer, kept: str | None) -> str:
    """Returns the hash of the teacher's model, which must be `kept`, if that is known."""
    digest = sha256_of(teacher.model_path)
    is_same = kept in (None, digest)
    if teacher.tokenizer().fingerprint != tokenizer.fingerprint or not is_same:
        raise UserError(
            f"training.teacher: {teacher.directory} must have the tokenizer of this run and, when "
            "the run resumes, the model with which it began. Received: another "
            f"{'tokenizer' if is_same else 'model'}"
        )
    return digest


def _record(run: Run) -> None:
    """Records the changes of settings and backend since the run began, and prints them."""
    step = max(map(checkpoint_step, run.checkpoints()), default=0)
    for key, (before, after) in run.record(step, keras.config.backend()).items():
        print(f"changed from step {step:,} on: {key} was {before!r} and is now {after!r}")


def _trainer(
    recipe: Recipe, initial_run: Run | None, teacher: Run | None, distribution: Distribution
) -> SlicedLogitsTrainer:
    """Returns the trainer for a recipe, with random weights or those of `initial_run`."""
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    settings = recipe.training
    with distribution.making():
        try:
            trainer = new_trainer(recipe, distribution, teacher)
            length = max(recipe.longest_lengths)
            for most in map(_positions, (trainer.model, trainer.teacher)):
                if most is not None and length > most:
                    raise ValueError(
                        "`data.max_length` with eos and padding must be at most model.max_length="
                        f"{most}, also that of the teacher's run. "
                        f"Received: data.max_length={recipe.data.max_length}: {length} tokens"
                    )
            if settings.packing or recipe.data.documents in ("lines", "paragraphs"):
                for model in filter(None, (trainer.model, trainer.teacher)):
                    model.check_packing()
            if initial_run:
                _load_initial_weights(initial_run, trainer.model)
            if settings.lora_rank:
                trainer.model.enable_lora(settings.lora_rank, parts=settings.lora_parts or [""])
            trainer.model.freeze(settings.frozen)
        except (TypeError, ValueError) as error:
            raise UserError(f"the recipe {recipe.name} cannot be trained: {error}") from error
    return trainer


def _positions(model: keras.Model) -> int | None:
    """Returns the number of positions of a model with learned positions, otherwise None."""
    return getattr(getattr(model, "positions", None), "max_length", None)


def new_trainer(
    recipe: Recipe, distribution: Distribution = ONE_DEVICE, teacher: Run | None = None
) -> SlicedLogitsTrainer:
    """Returns the compiled trainer for a recipe, with random weights.

    `teacher` is the run that the recipe names as `training.teacher`, if it is already open.
    """
    settings, size = recipe.training, recipe.tokenizer.vocabulary_size
    is_text = recipe.task is LANGUAGE_MODEL
    model = ARCHITECTURES[recipe.model.architecture].of_size(
        recipe.model.preset,
        size,
        pad_id=PAD_ID,
        dtype=settings.dtype_policy,
        **({} if recipe.tokenizer.joint else {"target_vocabulary_size": size}),
        **{**({"max_length": recipe.data.max_length} if is_text else {}), **recipe.model.overrides},
    )
    loss = MaskedCrossentropy(settings.label_smoothing, model.pad_id, reduction="sum")
    names = {"logits_mebibytes", "r_drop", "simcut", "simcut_rate", "gradient_checkpointing"}
    options = settings.model_dump(include=names | {"teacher_weight"})
    if settings.teacher:
        options["teacher"] = open_model(teacher or Run.open(settings.teacher))
    trainer = SlicedLogitsTrainer(model, loss, distribution=distribution, **options)
    optimizer = _optimizer(settings, model.d_model)
    vectors = [x for x in model.trainable_variables if len(x.shape) < 2]
    optimizer.exclude_from_weight_decay(vectors)
    trainer.compile(optimizer, jit_compile=settings.jit_compile)
    return trainer


def _optimizer(settings: Training, d_model: int) -> Any:
    """Returns the optimizer of a recipe, with its learning-rate schedule."""
    name, accumulation = settings.optimizer, settings.accumulation_steps
    peak = settings.peak_learning_rate
    schedule = TransformerSchedule(
        d_model=d_model if peak is None else None,
        warmup_steps=settings.warmup_steps,
        peak=peak,
        scale=settings.learning_rate_scale,
        # Means take the place of a falling rate.
        cosine_steps=settings.cosine_steps or (math.inf if name == "schedule_free" else None),
    )
    of_adam, decay = "adam_" if name == "muon" else "", settings.weight_decay or None
    options: dict[str, Any] = {
        f"{of_adam}beta_1": settings.adam_beta_1,
        f"{of_adam}beta_2": settings.adam_beta_2,
        **({} if name == "lion" else {"epsilon": settings.adam_epsilon}),
        **({"adam_weight_decay": decay} if name == "muon" else {}),
    }
    return OPTIMIZERS[name](
        schedule,
        global_clipnorm=settings.global_clipnorm,
        use_ema=settings.ema_momentum is not None,
        ema_momentum=settings.ema_momentum or 0.0,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
        weight_decay=decay,
        **options,
    )


def _load_initial_weights(run: Run, model: keras.Model) -> None:
    initial = open_model(run)
    trained, given = _settings(initial), _settings(model)
    for name in {**trained, **given}:
        if trained.get(name) != given.get(name):
            raise UserError(
                f"training.initial_run: {run.model_path} was trained with {name}="
                f"{trained.get(name)}, and the recipe has {name}={given.get(name)}. Copy the "
                f"section `model` from {run.recipe_path}"
            )
    model.set_weights([keras.ops.convert_to_numpy(x) for _, x in merged_weights(initial)])


def _settings(model: keras.Model) -> dict[str, Any]:
    """Returns the settings that change the weights of a model or what it computes with them."""
    others = {"name", "trainable", "dtype", "dropout_rate", "attention_dropout_rate"}
    others |= {"num_decoder_layers", "d_k"}  # None means the value of another setting.
    if _positions(model) is None:
        others.add("max_length")
    config = model.get_config()
    changes = config.pop("changes", {}).values()  # Adapters are merged.
    config["quantization"] = [x["quantization"] for x in changes if "quantization" in x]
    return {name: value for name, value in config.items() if name not in others}
