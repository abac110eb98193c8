"""Modes of the frameworks, and what Keras takes: the model trains, or an error says what to do."""

import contextlib

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import assert_same_arrays, to_numpy
from support.small_models import LENGTH, inputs_of, new_model

from keras_transformer import SearchOptions, TransformerAdam
from keras_transformer.decoding.decoding_loop import search
from keras_transformer.models.crossentropy import MaskedCrossentropy
from keras_transformer.training.fit_loop import fit
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer

BACKEND = keras.config.backend()


def compiled(
    variant="sinusoidal", slices=True, eager=False, recomputes=False, optimizer=None, **arguments
):
    keras.utils.set_random_seed(3)
    model = new_model(variant, **arguments)
    trained = model
    if slices:
        trained = SlicedLogitsTrainer(model, gradient_checkpointing=recomputes)
    loss = {} if slices else {"loss": MaskedCrossentropy()}
    trained.compile(optimizer or TransformerAdam(0.01), run_eagerly=eager, **loss)
    return trained


def batch(model):
    inputs = inputs_of(getattr(model, "model", model))
    return inputs, np.roll(inputs["target_ids"], -1, axis=1)


@contextlib.contextmanager
def sixty_four_bits():
    """`JAX_ENABLE_X64=1`. The other backends have no such mode."""
    import jax

    with jax.enable_x64(True):
        yield


@contextlib.contextmanager
def checked_numbers():
    if BACKEND == "jax":
        import jax

        with jax.debug_nans(True):
            yield
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        tf.debugging.enable_check_numerics()
        try:
            yield
        finally:
            tf.debugging.disable_check_numerics()
    else:
        yield


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slices": False},
        {"variant": "learned", "recomputes": True},
        {"variant": "full_attention", "attention_dropout_rate": 0.1},
        {"variant": "local_attention", "eager": True},
    ],
    ids=str,
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", [sixty_four_bits, checked_numbers])
def test_a_mode_changes_no_training(mode, options):
    losses = []
    for scope in (contextlib.nullcontext, mode):
        with scope():
            model = compiled(**options)
            results = [model.train_on_batch(*batch(model)) for _ in range(2)]
            losses.append([float(np.ravel(x)[0]) for x in results])
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "options",
    [
        {
            "n_best": 2,
            "num_beam_groups": 2,
            "diversity_penalty": 0.5,
            "no_repeat_ngram_size": 2,
        },
        {"min_length": 4, "repetition_penalty": 1.5, "coverage_penalty": 0.2},
    ],
    ids=str,
)
def test_search_with_64_bits(options):
    if BACKEND != "jax":
        return
    model, given = new_model(), SearchOptions(beam_size=4, **options)
    source_ids = inputs_of(model)["source_ids"]
    expected = search(model, source_ids, max_length=8, options=given)
    with sixty_four_bits():
        found = search(model, source_ids, max_length=8, options=given)
    np.testing.assert_array_equal(to_numpy(found.ids), to_numpy(expected.ids))


@pytest.mark.once
@pytest.mark.parametrize(
    "options",
    [{"use_ema": True, "global_clipnorm": 1.0}, {"amsgrad": True, "weight_decay": 1e-6}],
    ids=str,
)
def test_float16_weights_stay_finite(options):
    model = new_model(dtype="float16")
    model.compile(TransformerAdam(1e-3, **options), MaskedCrossentropy())
    losses = [float(model.train_on_batch(*batch(model))) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.weights)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "method, slices",
    [("fit", False), *once(("train_on_batch", True), ("evaluate", True), ("predict", False))],
)
def test_a_refusal_within_a_step_keeps_the_weights(method, slices):
    model = compiled("learned", slices, optimizer="sgd")
    x, y = batch(model)
    model.fit(x, y, verbose=0)
    weights = [to_numpy(weight) for weight in model.weights]
    long = {name: np.ones((2, LENGTH + 3), "int32") for name in x}

    def batches():
        yield (x,) if method == "predict" else (x, y[:, :-1])
        yield (long,) if method == "predict" else (long, y)

    with contextlib.suppress(Exception):  # TensorFlow computes NaN for positions that are too large
        if method == "train_on_batch":
            model.train_on_batch(x, y[:, :-1])
        else:
            getattr(model, method)(batches(), verbose=0)
    assert_same_arrays(model.weights, weights)
    assert np.isfinite(to_numpy(model(x))).all()


class Data(keras.utils.PyDataset):
    """Batches of several lengths."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        ids = np.random.default_rng(index).integers(1, 9, (2, 4 + index)).astype("int32")
        return {"source_ids": ids, "target_ids": ids}, np.roll(ids, -1, axis=1)


@pytest.mark.once
@pytest.mark.parametrize("batches", [Data(), [], iter([])], ids=lambda x: type(x).__name__)
def test_batches_are_a_function(batches, tmp_path):
    with pytest.raises(ValueError, match=f"`array_batches`.*type {type(batches).__name__}"):
        fit(compiled(), batches, tmp_path, steps=1)


def test_fit_works_in_a_strategy_of_tensorflow():
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = compiled(slices=False, optimizer="sgd", dropout_rate=0.0, num_layers=1)
    inputs, labels = Data()[0]
    expected = model.evaluate(inputs, labels, verbose=0)
    assert model.fit(inputs, labels, verbose=0).history["loss"][0] == pytest.approx(expected)
