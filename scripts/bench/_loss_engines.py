"""Ways to take the same training steps. As a program: a worker that takes them.

The folder of a run holds recipe, tokenizer and encoded text. Weights begin as NumPy draws them, so
that they are the same in every way and on every backend; the batches are those of the recipe.
"""

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import _common
import numpy as np
from _decoding_engines import LAYER_NORM_EPSILON, copy_layer, copy_weights
from _training_engines import keras_loss

TRAINER, FULL_LOGITS = "SlicedLogitsTrainer", "Transformer, full logits"
REVERSED, KERAS_HUB = "Transformer, rows reversed", "KerasHub's layers"

Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]
Step = Callable[[Batch], float]


def trainer_step(run: Any, tokenizer: Any) -> Step:
    """What `keras-transformer train` makes of the recipe."""
    from keras_transformer.training.run.trainer import new_trainer

    trainer = new_trainer(run.recipe)
    draw_weights(trainer.model)
    return lambda batch: loss_of(trainer, *batch)


def full_logits_step(run: Any, tokenizer: Any) -> Step:
    """`Transformer` with Keras's own Adam; the loss itself finds the real tokens in the labels."""
    from keras_transformer.training import MaskedCrossentropy

    model = new_model(run.recipe, tokenizer)
    label_smoothing = run.recipe.training.label_smoothing
    model.compile(new_adam(run.recipe), MaskedCrossentropy(label_smoothing, model.pad_id))
    return lambda batch: loss_of(model, *batch[:2])


def reversed_step(run: Any, tokenizer: Any) -> Step:
    """The same, with the sentences of a batch in another order: nothing differs but rounding."""
    step = full_logits_step(run, tokenizer)

    def reversed_rows(batch: Batch) -> float:
        inputs, labels, weights = batch
        inputs = {name: np.ascontiguousarray(ids[::-1]) for name, ids in inputs.items()}
        return step((inputs, np.ascontiguousarray(labels[::-1]), weights))

    return reversed_rows


def keras_hub_step(run: Any, tokenizer: Any) -> Step:
    """KerasHub's layers with our weights, a loss of their user's own, and Keras's Adam."""
    import keras
    from keras_hub import layers as hub

    ours = new_model(run.recipe, tokenizer)
    embedding = hub.ReversibleEmbedding(ours.vocabulary_size, ours.d_model)
    positions = hub.SinePositionEncoding()

    def embed(ids: Any) -> Any:
        vectors = embedding(ids) * math.sqrt(ours.d_model)
        return vectors + positions(vectors)

    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    mask = keras.ops.not_equal(source, ours.pad_id)
    sizes = {
        "intermediate_dim": ours.d_ff,
        "num_heads": ours.num_heads,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
    }
    encoders = [hub.TransformerEncoder(**sizes) for _ in range(ours.num_layers)]
    decoders = [hub.TransformerDecoder(**sizes) for _ in range(ours.num_layers)]
    memory, x = embed(source), embed(target)
    for layer in encoders:
        memory = layer(memory, padding_mask=mask)
    for layer in decoders:
        x = layer(x, memory, encoder_padding_mask=mask)
    model = keras.Model([source, target], embedding(x, reverse=True))
    copy_weights(embedding, ours.target_embedding)
    for i in range(ours.num_layers):
        copy_layer(encoders[i], ours.get_layer(f"encoder_layer_{i + 1}"))
        copy_layer(decoders[i], ours.decoder.layers[i])
    model.compile(new_adam(run.recipe), keras_loss)
    return lambda batch: loss_of(model, list(batch[0].values()), batch[1])


STEPS: dict[str, Callable[[Any, Any], Step]] = {
    TRAINER: trainer_step,
    FULL_LOGITS: full_logits_step,
    REVERSED: reversed_step,
    KERAS_HUB: keras_hub_step,
}


def new_model(recipe: Any, tokenizer: Any) -> Any:
    from keras_transformer.models import Transformer

    vocabulary_size = tokenizer.source_vocabulary_size
    model = Transformer.of_size(
        recipe.model.preset, vocabulary_size, pad_id=tokenizer.pad_id, **recipe.model.overrides
    )
    draw_weights(model)
    return model


def draw_weights(model: Any) -> None:
    """Glorot's uniform matrices, embeddings as in the paper, biases 0 and gains 1."""
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        if weight.name == "embeddings":
            value = generator.normal(size=weight.shape) * model.d_model**-0.5
        elif weight.name == "kernel":
            limit = math.sqrt(6 / sum(weight.shape))
            value = generator.uniform(-limit, limit, weight.shape)
        else:
            value = np.full(weight.shape, weight.name == "gamma")
        weight.assign(value.astype("float32"))


def new_adam(recipe: Any) -> Any:
    import keras

    from keras_transformer.training import TransformerSchedule

    settings = recipe.training
    schedule = TransformerSchedule(
        peak=settings.peak_learning_rate, warmup_steps=settings.warmup_steps
    )
    return keras.optimizers.Adam(
        schedule, settings.adam_beta_1, settings.adam_beta_2, settings.adam_epsilon
    )


def loss_of(model: Any, inputs: Any, labels: np.ndarray, weights: Any = None) -> float:
    """Takes a step, and returns the loss before it."""
    model.reset_metrics()
    return float(model.train_on_batch(inputs, labels, weights, return_dict=True)["loss"])


def losses(way: str, run: Any, steps: int) -> list[float]:
    from keras_transformer.data import BatchPlan, TokenStore

    settings = run.recipe.training
    plan = BatchPlan(
        TokenStore(run.store_dir / "train"),
        settings.tokens_per_batch,
        seed=run.recipe.seed,
        length_multiple=settings.length_multiple,
    )
    step = STEPS[way](run, run.tokenizer())
    return [step(batch) for batch in itertools.islice(plan.batches(), steps)]


def main() -> None:
    from keras_transformer.recipe.files import load_recipe
    from keras_transformer.runs.run import Run

    way, folder, dtype = sys.argv[1:]
    path = Run.open(folder).recipe_path
    run = Run(folder, load_recipe(path, [f"training.dtype_policy={dtype}"]))
    _common.serve(lambda: {"losses": lambda steps: losses(way, run, steps)})


if __name__ == "__main__":
    main()
