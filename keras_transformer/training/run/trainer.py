"""Makes the model of a recipe, its optimizer and its trainer."""

from typing import Any

import keras

from keras_transformer._backend import without_tensorflow
from keras_transformer.data.tokenizer import PAD_ID
from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES
from keras_transformer.models.crossentropy import MaskedCrossentropy
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.training.step.optimizer import TransformerAdam, TransformerSchedule
from keras_transformer.translation.open_run import open_model


def make_trainer(
    recipe: Recipe, initial_run: Run | None, teacher: Run | None, distribution: Distribution
) -> SlicedLogitsTrainer:
    """Returns the trainer of a run, with random weights or those of `initial_run`."""
    with without_tensorflow():
        keras.utils.set_random_seed(recipe.seed)
    with distribution.making():
        try:
            trainer = new_trainer(recipe, distribution, teacher)
            length = recipe.longest_lengths[0]
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


def new_trainer(
    recipe: Recipe, distribution: Distribution = ONE_DEVICE, teacher: Run | None = None
) -> SlicedLogitsTrainer:
    """Returns the compiled trainer for a recipe, with random weights.

    `teacher` is the run that the recipe names as `training.teacher`, if it is already open.
    """
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
        options["teacher"] = open_model(teacher or Run.open(settings.teacher))
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
