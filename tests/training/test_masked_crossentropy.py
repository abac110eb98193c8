"""The loss counts real tokens only, and smooths as PyTorch does."""

import keras
import numpy as np
import pytest

from keras_transformer.training import MaskedCrossentropy

B, T, V = 3, 5, 7


@pytest.fixture
def labels():
    labels = np.random.default_rng(0).integers(1, V, (B, T))
    labels[0, 3:] = 0
    labels[2, 1:] = 0
    return labels.astype("int32")


@pytest.fixture
def logits():
    return np.random.default_rng(1).normal(size=(B, T, V)).astype("float32") * 3


def reference_losses(labels, logits, label_smoothing):
    """Every token's loss by the definition: the full smoothed distribution against log softmax."""
    logits = logits.astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = np.eye(V)[labels] * (1 - label_smoothing) + label_smoothing / V
    return -(target * log_p).sum(-1)


def value(loss, *arguments):
    return keras.ops.convert_to_numpy(loss(*arguments))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_mean_over_real_tokens(labels, logits, label_smoothing):
    losses = reference_losses(labels, logits, label_smoothing)
    expected = losses[labels != 0].mean()
    loss = MaskedCrossentropy(label_smoothing)
    np.testing.assert_allclose(value(loss, labels, logits), expected, rtol=1e-5)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_agrees_with_torch(labels, logits, label_smoothing):
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits).reshape(-1, V),
        torch.tensor(labels).reshape(-1).long(),
        ignore_index=0,
        label_smoothing=label_smoothing,
    )
    loss = MaskedCrossentropy(label_smoothing)
    np.testing.assert_allclose(value(loss, labels, logits), expected.numpy(), rtol=1e-5)


def test_sum_adds_weighted_real_tokens(labels, logits):
    weights = np.random.default_rng(2).uniform(size=(B, T)).astype("float32")
    expected = (reference_losses(labels, logits, 0.1) * weights)[labels != 0].sum()
    loss = MaskedCrossentropy(0.1, reduction="sum")
    np.testing.assert_allclose(value(loss, labels, logits, weights), expected, rtol=1e-5)


def test_weights_give_a_weighted_mean_over_real_tokens(labels, logits):
    sentences = np.array([1.0, 2.0, 5.0], "float32")
    weights = (labels != 0) * sentences[:, None]
    expected = np.average(reference_losses(labels, logits, 0.0), weights=weights)
    np.testing.assert_allclose(
        value(MaskedCrossentropy(), labels, logits, sentences), expected, rtol=1e-5
    )


def test_padding_changes_nothing(labels, logits):
    changed = np.where((labels == 0)[..., None], 100.0, logits).astype("float32")
    loss = MaskedCrossentropy(0.1)
    assert value(loss, labels, logits) == value(loss, labels, changed)


def test_batch_of_padding_gives_zero(logits):
    nothing = np.zeros((B, T), "int32")
    for reduction in ("mean_with_sample_weight", "sum"):
        assert value(MaskedCrossentropy(0.1, reduction=reduction), nothing, logits) == 0


def test_pad_id_says_what_padding_is(labels, logits):
    labels = np.where(labels == 0, V - 1, labels % (V - 1))
    losses = reference_losses(labels, logits, 0.0)
    expected = losses[labels != V - 1].mean()
    loss = MaskedCrossentropy(pad_id=V - 1)
    np.testing.assert_allclose(value(loss, labels, logits), expected, rtol=1e-5)


def test_no_reduction_keeps_one_value_a_token(labels, logits):
    expected = reference_losses(labels, logits, 0.1) * (labels != 0)
    loss = MaskedCrossentropy(0.1, reduction=None)
    np.testing.assert_allclose(value(loss, labels, logits), expected, rtol=1e-5)


def test_large_logits_stay_finite(labels, logits):
    assert np.isfinite(value(MaskedCrossentropy(0.1), labels, logits * 1e4))


def test_half_precision_logits_are_summed_in_float32(labels, logits):
    half = keras.ops.cast(logits, "bfloat16")
    result = MaskedCrossentropy(0.1)(labels, half)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    rounded = keras.ops.convert_to_numpy(keras.ops.cast(half, "float32"))
    expected = reference_losses(labels, rounded, 0.1)[labels != 0].mean()
    np.testing.assert_allclose(keras.ops.convert_to_numpy(result), expected, rtol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_trains_in_compile_and_fit(labels, policy):
    model = keras.Sequential(
        [keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, V, dtype=policy)]
    )
    model.compile("sgd", loss=MaskedCrossentropy(0.1))
    history = model.fit(labels, labels, batch_size=B, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]


def test_config_round_trip():
    loss = MaskedCrossentropy(0.2, pad_id=3, reduction="sum", name="tokens")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, MaskedCrossentropy)
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("reduction", ["mean", "sum_over_batch_size", "nonsense"])
def test_refuses_reductions_that_count_padding(reduction):
    with pytest.raises(ValueError, match=f"Received: reduction='{reduction}'"):
        MaskedCrossentropy(reduction=reduction)


def test_refuses_smoothing_outside_0_to_1():
    with pytest.raises(ValueError, match="Received: label_smoothing=1.5"):
        MaskedCrossentropy(label_smoothing=1.5)
