"""Prepares a training: the model and its trainer, the tokenizer, and the batches."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import keras

from keras_transformer._files import sha256_of
from keras_transformer.data import BatchPlan, Shard, Tokenizer, TokenStore, evaluation_batches
from keras_transformer.data.batch_plan import Batch
from keras_transformer.data.piece_sampler import PieceSampler
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import checkpoint_step
from keras_transformer.runs.run import Run
from keras_transformer.runs.text import Split
from keras_transformer.training.devices.base import Distribution
from keras_transformer.training.run.trainer import make_trainer
from keras_transformer.training.run.translate_corpora import translate_corpora
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.translation.word_forms import WordForms


class Prepared(NamedTuple):
    """What a training starts with."""

    trainer: SlicedLogitsTrainer
    tokenizer: Tokenizer
    plan: BatchPlan
    validation_batches: Sequence[Batch]


def prepare(run: Run, resume: bool, distribution: Distribution) -> Prepared:
    """Makes the trainer, then the tokenizer and the encoded text, which the chief makes first."""
    has_begun = resume and bool(run.checkpoints())
    if resume and run.model_path.exists() and not has_begun:
        raise UserError(
            f"{run.model_path} exists, but there is no checkpoint to resume from. To train on with "
            "these weights, start another run with the recipe key training.initial_run"
        )
    initial_run = None if has_begun else run.other_run("initial_run")
    teacher = run.other_run("teacher")
    trainer = make_trainer(run.recipe, initial_run, teacher, distribution)
    is_chief = distribution.is_chief

    def make_text() -> tuple[Tokenizer, TokenStore, TokenStore]:
        if is_chief:
            translate_corpora(run)
        tokenizer = _tokenizer(run, initial_run or teacher)
        if teacher:
            _check_teacher(run, teacher, tokenizer, resume, is_chief)
        training_text = _encoded(run, "train", tokenizer, resume, is_chief)
        validation_text = _encoded(run, "validation", tokenizer, resume, is_chief)
        if is_chief and not run.word_forms_path.exists():
            sources = (source for source, _ in run.text.pairs("train", tagged=False))
            WordForms.learn(sources).save(run.word_forms_path)
        if is_chief and (resume or not run.checkpoints()):  # otherwise, `fit` raises an error
            _record(run)
        return tokenizer, training_text, validation_text

    tokenizer, training_text, validation_text = distribution.chief_first(make_text)
    vars(trainer.model)["tokenizer_files"] = tokenizer.files  # Checkpoints keep them.
    plan = _plan(run.recipe, training_text, tokenizer, distribution.shard)
    settings = run.recipe.training
    validation_batches = evaluation_batches(
        validation_text, settings.tokens_per_batch, settings.length_multiple
    )
    return Prepared(trainer, tokenizer, plan, validation_batches)


def _plan(recipe: Recipe, text: TokenStore, tokenizer: Tokenizer, shard: Shard) -> BatchPlan:
    settings, alpha = recipe.training, recipe.training.subword_regularization
    return BatchPlan(
        text,
        settings.tokens_per_batch,
        seed=recipe.seed,
        accumulation_steps=settings.accumulation_steps,
        length_multiple=settings.length_multiple,
        shard=shard,
        weights=[corpus.weight for corpus in recipe.data.corpora("train")],
        sampler=None if alpha is None else PieceSampler(tokenizer, alpha),
    )


def _tokenizer(run: Run, other_run: Run | None) -> Tokenizer:
    """Loads the tokenizer of a run. If there is none, copies that of another run or trains one."""
    if run.tokenizer_dir.is_dir():
        tokenizer = run.tokenizer()
    else:
        tokenizer = other_run.tokenizer() if other_run else _trained_tokenizer(run)
        tokenizer.save(run.tokenizer_dir)
    sizes = {tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size}
    if sizes != {run.recipe.tokenizer.vocabulary_size}:
        raise UserError(
            f"{run.tokenizer_dir} must have the recipe's vocabulary sizes. Received: {sizes} and "
            f"tokenizer.vocabulary_size={run.recipe.tokenizer.vocabulary_size}"
        )
    return tokenizer


def _trained_tokenizer(run: Run) -> Tokenizer:
    print("Training the tokenizer.", file=sys.stderr)
    settings = run.recipe.tokenizer.model_dump()
    tags = {x.tag: None for x in run.recipe.data.corpora("train") if x.tag}
    return Tokenizer.train(run.text.pairs("train", tagged=False), **settings, tags=tags)


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


def _encoded(
    run: Run, split: Split, tokenizer: Tokenizer, resume: bool, is_chief: bool
) -> TokenStore:
    """Returns a split as token ids. A resumed run must have the text with which it began."""
    folder, length = run.store_dir / split, run.recipe.data.max_length
    kept = run.text.fingerprints().get(split) if resume else None
    store = TokenStore.build(folder, run.text.pairs(split), tokenizer, length, fingerprint=kept)
    if is_chief:
        run.text.add_fingerprint(split, store.fingerprint)
        print(f"{split}: {store.report}")
    return store


def _record(run: Run) -> None:
    """Records the changes of settings and backend since the run began, and prints them."""
    step = max(map(checkpoint_step, run.checkpoints()), default=0)
    history, backend = run.history(), keras.config.backend()
    changes = run.record(step, backend)
    if history and history[-1]["backend"] != backend:
        changes = {"the backend": (history[-1]["backend"], backend), **changes}
    for key, (before, after) in changes.items():
        print(f"changed from step {step:,} on: {key} was {before!r} and is now {after!r}")
