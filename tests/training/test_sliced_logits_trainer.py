"""Training with sliced logits is training with all of them."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import assert_same_arrays, randomize, to_numpy
from support.small_models import V, inputs_of, new_model

from keras_transformer._backend.fit_data import fit_data
from keras_transformer.models import Transformer
from keras_transformer.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    SlicedLogitsTrainer,
    TransformerAdam,
)
from keras_transformer.training.sliced_logits_trainer import _Cut


def new_loss(reduction="mean_with_sample_weight", pad_id=0):
    return MaskedCrossentropy(0.1, pad_id, reduction)


def new_trainer(variant="sinusoidal", **arguments):
    """Slices of 12 tokens, as many as the model has features; dropout off."""
    model = new_model(variant, dropout_rate=0.0, num_layers=1)
    loss = new_loss(pad_id=model.pad_id, **arguments)
    trainer = SlicedLogitsTrainer(model, loss, logits_mebibytes=0)
    trainer.compile(TransformerAdam(0.01))
    return trainer


def labels_of(inputs, pad_id=0):
    labels = np.random.default_rng(2).integers(1, V, inputs["target_ids"].shape).astype("int32")
    return np.where(inputs["target_ids"] == pad_id, pad_id, labels)


def assert_same_weights(trainer, model):
    for own, other in zip(trainer.model.weights, model.weights, strict=True):
        # Softmax is blind to a key bias: Adam makes steps of what rounding leaves of its gradient.
        if not own.path.endswith("key/bias"):
            np.testing.assert_allclose(to_numpy(own), to_numpy(other), atol=2e-5)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "variant",
    ["sinusoidal", *once("all_of_opennmt"), pytest.param("all_at_once", marks=pytest.mark.slow)],
)
def test_training_and_saving_are_those_with_all_logits(variant, tmp_path):
    trainer = new_trainer(variant)
    model = new_model(variant, dropout_rate=0.0, num_layers=1)
    metrics = [MaskedAccuracy(model.pad_id), Perplexity(model.pad_id)]
    model.compile(TransformerAdam(0.01), new_loss(pad_id=model.pad_id), weighted_metrics=metrics)
    inputs = inputs_of(model, batch=3)
    labels = labels_of(inputs, model.pad_id)
    weights = np.random.default_rng(3).random(labels.shape).astype("float32")
    for _ in range(2):
        found, expected = (
            x.train_on_batch(inputs, labels, weights, return_dict=True) for x in (trainer, model)
        )
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
    assert_same_weights(trainer, model)
    trainer.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is Transformer
    assert int(loaded.optimizer.iterations) == 2
    assert_same_arrays(trainer.model.weights, loaded.weights)
    for each in (trainer, loaded):  # the loaded model trains on where the trainer stopped
        each.train_on_batch(inputs, labels, weights)
    assert_same_weights(trainer, loaded)


@pytest.mark.parametrize(
    "is_training, reduction",
    [(True, "sum"), (False, "sum"), (False, "mean_with_sample_weight")],
)
def test_the_reported_loss_is_the_mean_per_token_of_all_batches(is_training, reduction):
    """Keras weights each batch by its rows, so short sentences would count too much."""
    model = new_model(dropout_rate=0.0, num_layers=1)
    trainer = SlicedLogitsTrainer(model, MaskedCrossentropy(reduction=reduction))
    trainer.compile(TransformerAdam(0.0))
    rng, batches = np.random.default_rng(0), []
    for rows, length in ((12, 2), (2, 12)):
        ids = rng.integers(4, V, (3, rows, length)).astype("int32")
        weights = np.full((rows, length), 1 / (rows * length), "float32")
        batches.append(({"source_ids": ids[0], "target_ids": ids[1]}, ids[2], weights))
    batches = fit_data(batches, trainer)
    if is_training:
        history = trainer.fit(batches, steps_per_epoch=2, verbose=0).history
        found = {name: values[0] for name, values in history.items()}
    else:
        found = trainer.evaluate(batches, steps=2, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(np.log(found["perplexity"]), rel=1e-5)


class BiasedModel(keras.Model):
    """A model that is no `Transformer`: its projection has a bias and a matrix of its own."""

    pad_id = 0

    def __init__(self):
        ids = keras.Input((None,), dtype="int32")
        states = keras.layers.Embedding(V, 7, embeddings_regularizer="l2")(ids)
        states = keras.layers.Dense(5, activation="tanh", activity_regularizer="l1")(states)
        projection = keras.layers.Dense(V)
        super().__init__(ids, projection(states))
        self.states, self.projection = states, projection

    def output_weights(self):
        return keras.ops.transpose(self.projection.kernel), self.projection.bias


def test_a_bias_and_additional_losses_count_as_with_all_logits():
    model, sliced = BiasedModel(), BiasedModel()
    for each in (model, sliced):
        randomize(each)
    trainer = SlicedLogitsTrainer(sliced, new_loss(), logits_mebibytes=0)
    trainer.compile("sgd")
    model.compile("sgd", new_loss())
    ids = np.random.default_rng(0).integers(0, V, (3, 6)).astype("int32")
    for _ in range(2):
        losses = [x.train_on_batch(ids, ids, return_dict=True)["loss"] for x in (model, trainer)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_same_arrays(sliced.weights, model.weights, atol=1e-6)


@pytest.mark.each_backend
@pytest.mark.slow
def test_r_drop_passes_the_model_twice_in_training_alone():
    model = new_model(dropout_rate=0.5, num_layers=1)
    trainer = SlicedLogitsTrainer(model, new_loss(), r_drop=1.0)
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


@pytest.mark.each_backend_if_slow
def test_simcut_compares_with_a_text_in_which_whole_vectors_are_cut():
    alpha, rate = 3.0, 0.4
    model = new_model(dropout_rate=0.0, num_layers=1)
    trainer = SlicedLogitsTrainer(model, new_loss(), simcut=alpha, simcut_rate=rate)
    trainer.compile("sgd")
    inputs = inputs_of(model, batch=3)
    labels = labels_of(inputs)
    state = to_numpy(trainer.non_trainable_variables[-1])  # the seed of the cuts
    whole, cut = np.split(to_numpy(trainer(inputs, training=True)), 2)
    np.testing.assert_allclose(whole, to_numpy(trainer(inputs)), atol=1e-6)
    assert np.abs(cut - whole).max() > 0.1

    def log_probabilities(states):
        logits = states @ to_numpy(model.output_weights()[0]).T
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    log_p, log_q = log_probabilities(whole), log_probabilities(cut)
    divergences = (np.exp(log_p) * (log_p - log_q)).sum(-1)[labels != 0]
    expected = float(new_loss()(labels, log_p)) + alpha * divergences.mean()
    trainer.non_trainable_variables[-1].assign(state)
    np.testing.assert_allclose(trainer.train_on_batch(inputs, labels)[0], expected, rtol=1e-4)


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float32", 1e-5), ("mixed_bfloat16", 1e-2)],
)
def test_a_teacher_of_another_size_has_its_share_of_the_loss(dtype, tolerance, tmp_path):
    model = new_model(dropout_rate=0.0, num_layers=1, dtype=dtype)
    sizes = {"d_model": 20, "num_heads": 5, "num_layers": 2, "dropout_rate": 0.5}
    teacher = new_model(**sizes, use_logits_bias=True, dtype=dtype)
    inputs = inputs_of(model, batch=3)
    labels = labels_of(inputs)
    before, logits = teacher.get_weights(), (to_numpy(x(inputs)) for x in (teacher, model))
    log_q, log_p = (to_numpy(keras.ops.log_softmax(x.astype("float32"))) for x in logits)
    soft = -(np.exp(log_q) * log_p).sum(-1)[labels != 0].mean()
    expected = 0.75 * float(new_loss()(labels, log_p)) + 0.25 * soft
    trainer = SlicedLogitsTrainer(model, new_loss(), teacher=teacher, teacher_weight=0.25)
    trainer.compile("sgd")
    found = trainer.train_on_batch(inputs, labels)[0]
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    assert_same_arrays(teacher.weights, before)
    assert len(trainer.trainable_variables) == len(model.trainable_variables)
    trainer.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").count_params() == model.count_params()


@pytest.mark.each_backend_if_slow
def test_a_student_that_equals_its_teacher_stays_as_it_is():
    model, teacher = (new_model(dropout_rate=x, num_layers=1) for x in (0.0, 0.5))
    inputs, before = inputs_of(model), model.get_weights()
    trainer = SlicedLogitsTrainer(model, new_loss(), teacher=teacher, teacher_weight=1.0)
    trainer.compile(keras.optimizers.SGD(1.0))
    trainer.train_on_batch(inputs, labels_of(inputs))
    assert_same_arrays(model.weights, before, atol=1e-5)


def test_adapters_of_student_and_teacher_have_equal_names_and_own_gradients():
    found = []
    for has_adapters in (False, True):
        models = [seeded_model(x) for x in (0, 1)]
        models[0].enable_lora(2)
        if has_adapters:
            models[1].enable_lora(2)  # begins with 0
        trainer = SlicedLogitsTrainer(models[0], new_loss(), teacher=models[1])
        trainer.compile(keras.optimizers.SGD(0.5))
        for _ in range(3):
            trainer.train_on_batch(inputs_of(models[0]), labels_of(inputs_of(models[0])))
        found.append([to_numpy(x) for x in models[0].trainable_weights])
    assert_same_arrays(found[1], found[0], atol=1e-6)


def seeded_model(seed):
    keras.utils.set_random_seed(seed)
    return new_model(dropout_rate=0.0, num_layers=1)


def test_cut_vectors_are_zero_and_no_other_vector_changes():
    model = new_model(dropout_rate=0.0, num_layers=1)
    cut = _Cut(0.4, seed=1)
    ids = np.arange(1, 13).reshape(2, 6)
    embedding = model.target_embedding
    with cut.cutting(model):
        whole, second = np.split(to_numpy(embedding(np.concatenate([ids, ids]))), 2)
    vectors = to_numpy(embedding(ids))
    np.testing.assert_array_equal(whole, vectors)
    is_cut = (second == 0).all(-1)
    assert 0 < is_cut.mean() < 1
    np.testing.assert_array_equal(second[~is_cut], vectors[~is_cut])


@pytest.mark.each_backend_if_slow
def test_a_step_updates_the_batch_statistics_once():
    trainer = new_trainer("batch_normalization")
    model = new_model("batch_normalization", dropout_rate=0.0, num_layers=1)
    inputs = inputs_of(model)
    trainer.train_on_batch(inputs, labels_of(inputs))
    model(inputs, training=True)
    for own, other in zip(trainer.model.weights, model.weights, strict=True):
        if own.name.startswith("moving"):
            np.testing.assert_allclose(to_numpy(own), to_numpy(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model, arguments, message",
    [
        (
            lambda: new_model("all_at_once"),
            {"loss": new_loss()},
            "pad_id=0 of MaskedCrossentropy, pad_id=5",
        ),
        (
            lambda: new_model("batch_normalization"),
            {"gradient_checkpointing": True},
            "update its moving averages twice",
        ),
        (new_model, {"r_drop": 1.0, "simcut": 1.0}, "Only one of `r_drop` and `simcut`"),
        (new_model, {"teacher": SimpleNamespace(pad_id=5)}, "Received: pad_id=5, pad_id=0 of"),
    ],
)
def test_what_would_count_or_compute_wrongly_is_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        SlicedLogitsTrainer(model(), **arguments).compile()


@pytest.mark.parametrize("gibibytes, mebibytes", [(80, 4096), (24, 2048), (None, 4096)])
def test_a_gpu_with_little_memory_has_smaller_slices(gibibytes, mebibytes, monkeypatch):
    place = "keras_transformer.training.sliced_logits_trainer"
    monkeypatch.setattr(f"{place}.is_on_cpu", lambda: False)
    monkeypatch.setattr(f"{place}.device_memory", lambda: gibibytes and gibibytes * 2**30)
    trainer = SlicedLogitsTrainer(new_model("sinusoidal", num_layers=1))
    assert trainer.slice_size == mebibytes * 2**20 // (4 * V)
