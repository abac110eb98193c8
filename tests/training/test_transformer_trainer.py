"""Training without logits is training with them."""

import keras
import numpy as np
import pytest
from support.contract import to_numpy
from support.small_models import V, inputs_of, new_model

from keras_transformer.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    TransformerAdam,
    TransformerTrainer,
)


def new_loss(reduction="mean_with_sample_weight"):
    return MaskedCrossentropy(0.1, reduction=reduction)


def new_trainer(**arguments):
    """Slices of 12 tokens, as many as the model has features; dropout off."""
    model = new_model(dropout_rate=0.0, num_layers=1)
    trainer = TransformerTrainer(model, new_loss(**arguments), logits_mebibytes=0)
    trainer.compile(TransformerAdam(0.01))
    return trainer


def labels_of(inputs):
    labels = np.random.default_rng(2).integers(1, V, inputs["target_ids"].shape).astype("int32")
    return np.where(inputs["target_ids"] == 0, 0, labels)


def test_losses_metrics_and_weights_are_those_with_logits():
    trainer = new_trainer()
    model = new_model(dropout_rate=0.0, num_layers=1)
    metrics = [MaskedAccuracy(), Perplexity()]
    model.compile(TransformerAdam(0.01), new_loss(), weighted_metrics=metrics)
    inputs = inputs_of(model, batch=3)
    labels = labels_of(inputs)
    weights = np.random.default_rng(3).random(labels.shape).astype("float32")
    for _ in range(2):
        found, expected = (
            x.train_on_batch(inputs, labels, weights, return_dict=True) for x in (trainer, model)
        )
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
    for own, other in zip(trainer.model.weights, model.weights, strict=True):
        # Softmax is blind to a key bias: Adam makes steps of what rounding leaves of its gradient.
        if not own.path.endswith("key/bias"):
            np.testing.assert_allclose(to_numpy(own), to_numpy(other), atol=2e-5)


def test_a_sum_is_the_mean_times_the_weights():
    trainers = [new_trainer(reduction=each) for each in ("mean_with_sample_weight", "sum")]
    inputs = inputs_of(trainers[0].model)
    labels, weights = labels_of(inputs), np.full(inputs["target_ids"].shape, 0.25, "float32")
    mean, total = (x.test_on_batch(inputs, labels, weights, return_dict=True) for x in trainers)
    expected = mean.pop("loss") * 0.25 * np.sum(labels != 0)
    np.testing.assert_allclose(total.pop("loss"), expected, rtol=1e-5)
    assert total == mean


def test_keras_file_holds_model_loss_and_optimizer(tmp_path):
    trainer = new_trainer(reduction="sum")
    trainer.recomputation = True
    inputs = inputs_of(trainer.model)
    trainer.train_on_batch(inputs, labels_of(inputs))
    trainer.save(tmp_path / "trainer.keras")
    again = keras.saving.load_model(tmp_path / "trainer.keras")
    assert again.get_config() == trainer.get_config()
    assert int(again.optimizer.iterations) == 1
    logits = [to_numpy(x.model(inputs)) for x in (trainer, again)]
    np.testing.assert_array_equal(*logits)


@pytest.mark.slow
def test_r_drop_without_dropout_is_training_without_it():
    trainers = [new_trainer(), new_trainer()]
    trainers[1].r_drop = 5.0
    inputs = inputs_of(trainers[0].model, batch=3)
    losses = [
        [trainer.train_on_batch(inputs, labels_of(inputs))[0] for _ in range(2)]
        for trainer in trainers
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_r_drop_passes_the_model_twice_in_training_alone():
    model = new_model(dropout_rate=0.5, num_layers=1)
    trainer = TransformerTrainer(model, new_loss(), r_drop=1.0)
    inputs = inputs_of(model, batch=3)
    first, second = np.split(to_numpy(trainer(inputs, training=True)), 2)
    assert first.shape == trainer(inputs).shape
    assert np.abs(first - second).max() > 0.1
    trainer.compile(TransformerAdam(0.01))
    trained, tested = (
        step(inputs, labels_of(inputs), return_dict=True)
        for step in (trainer.train_on_batch, trainer.test_on_batch)
    )
    assert trained["loss"] > tested["loss"]


@pytest.mark.parametrize("mebibytes, expected", [(0, 12), (1, 2**20 // (4 * V))])
def test_slices_have_d_tokens_or_what_fits(mebibytes, expected):
    assert TransformerTrainer(new_model(), logits_mebibytes=mebibytes).slice_size == expected


def test_float16_scales_the_loss():
    model = new_model(num_layers=1, dropout_rate=0.0, dtype="mixed_float16")
    trainer = TransformerTrainer(model, new_loss())
    trainer.compile(TransformerAdam(0.01))
    assert isinstance(trainer.optimizer, keras.optimizers.LossScaleOptimizer)
    inputs = inputs_of(model)
    losses = [trainer.train_on_batch(inputs, labels_of(inputs))[0] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_loss_must_be_a_mean_or_a_sum():
    with pytest.raises(ValueError, match=r"loss\.reduction=None"):
        TransformerTrainer(new_model(), MaskedCrossentropy(reduction=None))
