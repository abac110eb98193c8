"""Models bring their loss, metrics and labels; datasets of all kinds get one sentence if wrong."""

import keras
import numpy as np
import pytest
from support.cases import once
from support.contract import assert_same_arrays, to_numpy

from keras_transformer import (
    LanguageModel,
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    SlicedLogitsTrainer,
    Transformer,
)

V, BOS, EOS = 13, 2, 3
SIZES = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 6}
# Two sentences and their padding: bos, pieces, eos.
FRAMED = np.array([[BOS, 5, 6, 7, 8, EOS], [BOS, 9, 4, EOS, 0, 0]], "int32")
INPUTS = {
    "source_ids": np.array([[8, 7, 6, 5, EOS], [4, 9, EOS, 0, 0]], "int32"),
    "target_ids": np.array([[BOS, 5, 6, 7, 8], [BOS, 9, 4, 0, 0]], "int32"),
}
LABELS = FRAMED[:, 1:]
WEIGHTS = np.array([[1, 2, 0.5, 1, 3], [2, 1, 1, 1, 1]], "float32")


def new_model(seed=1, **options):
    keras.utils.set_random_seed(seed)
    return Transformer(V, **{**SIZES, "dropout_rate": 0.0, **options})


def by_hand(model, weights=1.0):
    """The results of `evaluate`, from logits: loss, accuracy and perplexity of real tokens."""
    logits = to_numpy(model(INPUTS)).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, LABELS[..., None], 2)[..., 0]
    weights = (LABELS != 0) * weights
    loss = (losses * weights).sum() / weights.sum()
    hits = ((logits.argmax(-1) == LABELS) * weights).sum() / weights.sum()
    return {"loss": loss, "accuracy": hits, "perplexity": np.exp(loss)}


def check(model, data, expected):
    found = model.evaluate(*data, verbose=0, return_dict=True)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)
    return found.keys()


@pytest.mark.each_backend_if_slow
def test_a_model_brings_its_loss_and_metrics_and_keeps_them_when_saved(tmp_path):
    model = new_model()
    model.compile("adam")
    expected = by_hand(model)
    assert check(model, (INPUTS, LABELS), expected) == expected.keys()
    history = model.fit(INPUTS, LABELS, epochs=30, verbose=0).history
    assert history["perplexity"][-1] < history["perplexity"][0]
    assert model.predict(INPUTS, verbose=0).shape == (2, 5, V)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert check(loaded, (INPUTS, LABELS), by_hand(model)) == expected.keys()
    for each in (model, loaded):  # with the optimizer's state
        each.fit(INPUTS, LABELS, verbose=0)
    assert_same_arrays(model.get_weights(), loaded.get_weights(), atol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("sliced", [False, True])
def test_labels_may_be_left_out(sliced):
    """The targets are then framed by bos and eos. What comes after eos is padding."""
    model = new_model()
    trained = SlicedLogitsTrainer(model) if sliced else model
    trained.compile("adam")
    framed = {**INPUTS, "target_ids": FRAMED}
    check(trained, (framed,), by_hand(model))
    first = [trained.fit(framed, verbose=0).history["loss"], model.get_weights()]
    model.set_weights(new_model().get_weights())
    trained.compile("adam")
    second = [trained.fit(INPUTS, LABELS, verbose=0).history["loss"], model.get_weights()]
    assert_same_arrays(keras.tree.flatten(first), keras.tree.flatten(second), atol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("pad_id", [0, -1])
def test_the_labels_of_a_language_model_are_its_tokens(pad_id):
    model = LanguageModel(V, **SIZES, max_length=8, pad_id=pad_id)
    model.compile("adam")
    labels = np.pad(FRAMED[:, 1:], ((0, 0), (0, 1)), constant_values=pad_id)
    expected = model.evaluate(FRAMED, labels, verbose=0)
    np.testing.assert_allclose(model.evaluate(FRAMED, verbose=0), expected, rtol=1e-6)
    assert model.fit(FRAMED, verbose=0).history.keys() == {"loss", "accuracy", "perplexity"}


KERAS_LOSSES = [
    "sparse_categorical_crossentropy",
    "SparseCategoricalCrossentropy",
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.SparseCategoricalCrossentropy(),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
]
KERAS_METRICS = ["accuracy", "acc", keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@pytest.mark.once
@pytest.mark.parametrize(
    "weights",
    [1.0, WEIGHTS, WEIGHTS[:, :1]],
    ids=["none", "tokens", "rows"],
)
def test_losses_and_metrics_of_keras_count_real_tokens_from_logits(weights):
    model = new_model()
    expected = by_hand(model, weights)
    given = () if isinstance(weights, float) else (np.squeeze(weights),)
    for loss, metric in zip(KERAS_LOSSES, [*KERAS_METRICS, None, None], strict=True):
        model.compile("adam", loss, weighted_metrics=metric and [metric])
        assert model.loss.pad_id == 0 and model.loss.reduction == "mean_with_sample_weight"
    model.compile("adam", KERAS_LOSSES[0], weighted_metrics=["accuracy"], metrics=["acc"])
    found = model.evaluate(INPUTS, LABELS, *(32, 0, *given), return_dict=True)
    assert found.pop("acc") == pytest.approx(by_hand(model)["accuracy"])
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)


@pytest.mark.each_backend_if_slow
def test_weights_of_rows_may_follow_those_of_tokens_and_arguments_have_the_places_of_keras():
    model = new_model()
    model.compile("sgd")
    for weights in (WEIGHTS, WEIGHTS[:, 0], WEIGHTS, WEIGHTS[:, 0]):
        expected = by_hand(model, weights if weights.ndim == 2 else weights[:, None])
        found = model.evaluate(INPUTS, LABELS, 32, 0, weights, return_dict=True)
        assert found == pytest.approx(expected, abs=1e-5)
    validation = (INPUTS, LABELS)
    given = INPUTS, LABELS, 2, 2, 0, None, 0.0, validation, False, None, WEIGHTS, 1, 1
    history = model.fit(*given)
    assert history.epoch == [1] and "val_loss" in history.history


COUNTS_PADDING = "would count padding"
OTHER_PADDING = r"pad_id=0 of \w+, pad_id=5 of the model"


@pytest.mark.once
@pytest.mark.parametrize(
    "counted, message",
    [
        ({"metrics": ["accuracy", "mae"]}, COUNTS_PADDING),
        ({"weighted_metrics": [keras.metrics.SparseTopKCategoricalAccuracy()]}, COUNTS_PADDING),
        ({"loss": MaskedCrossentropy()}, OTHER_PADDING),
        ({"metrics": ["accuracy", MaskedAccuracy()]}, OTHER_PADDING),
        ({"weighted_metrics": [Perplexity()]}, OTHER_PADDING),
    ],
)
def test_other_losses_metrics_and_padding_are_refused(counted, message):
    with pytest.raises(ValueError, match=message):
        new_model(pad_id=5).compile("sgd", **counted)


@pytest.mark.once
def test_own_losses_and_metrics_are_left_alone():
    def accuracy(y_true, y_pred):
        return y_true

    own = {"loss": MaskedCrossentropy(0.1), "metrics": [accuracy, Perplexity(), MaskedAccuracy()]}
    model = new_model()
    model.compile("adam", **own)
    assert model.loss is own["loss"] and model.get_compile_config()["weighted_metrics"] is None
    assert new_model().labels(INPUTS, LABELS) is LABELS


class Batches(keras.utils.PyDataset):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.batch


def data_of(kind, x, y):
    """Two batches as a user may have them. A generator becomes a `tf.data` on TensorFlow."""
    return ((x, y) for _ in range(2)) if kind == "generator" else Batches((x, y))


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize("kind", ["generator", *once("PyDataset")])
def test_the_first_batch_of_any_data_is_looked_at(kind):
    model = new_model()
    model.compile("sgd")
    assert np.isfinite(model.fit(data_of(kind, INPUTS, LABELS), verbose=0).history["loss"][0])
    model.compile("sgd")
    bad = {**INPUTS, "source_ids": np.full((2, 5), V, "int32")}
    is_tensorflow = kind == "generator" and keras.config.backend() == "tensorflow"
    with pytest.raises(
        Exception, match=r"13.*is not in \[0, 13\)" if is_tensorflow else r"from 0 to 12.*13"
    ):
        model.fit(data_of(kind, bad, LABELS), verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
