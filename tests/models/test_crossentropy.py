"""The loss counts real tokens only and smooths as PyTorch does; slices change nothing."""

import keras
import numpy as np
import pytest
import torch
from keras import ops
from support.cases import once
from support.contract import assert_same_arrays, to_numpy
from support.gradients import gradients_of
from support.reference import softmax

from keras_transformer.models.crossentropy import SecondPass, sliced_crossentropy
from keras_transformer.training import MaskedAccuracy, MaskedCrossentropy, Perplexity

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
    """The loss of each token, (..., V) to (...), in float64."""
    rows = torch.tensor(logits.reshape(-1, V), dtype=torch.float64)
    options = {"reduction": "none", "label_smoothing": label_smoothing}
    losses = torch.nn.functional.cross_entropy(rows, torch.tensor(labels.ravel()).long(), **options)
    return losses.numpy().reshape(labels.shape)


@pytest.mark.parametrize(
    "label_smoothing, pad_id, sentences, dtype",
    [
        (0.1, V - 1, [1.0, 1.0, 1.0], "bfloat16"),
        (0.0, 0, [1.0, 2.0, 5.0], "float32"),
        *once((1.0, 0, [1.0, 1.0, 1.0], "float32")),
    ],
)
def test_losses_of_real_tokens_and_their_weighted_mean_are_those_of_pytorch(
    labels, logits, label_smoothing, pad_id, sentences, dtype
):
    labels, logits = (labels + pad_id) % V, ops.cast(logits, dtype)
    losses = reference_losses(labels, to_numpy(ops.cast(logits, "float32")), label_smoothing)
    sentences = np.array(sentences, "float32")
    weights = (labels != pad_id) * sentences[:, None]
    for reduction, expected in (
        ("mean_with_sample_weight", np.average(losses, weights=weights)),
        (None, losses * weights),
    ):
        loss = MaskedCrossentropy(label_smoothing, pad_id, reduction)(labels, logits, sentences)
        assert keras.backend.standardize_dtype(loss.dtype) == "float32"
        np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-5)


def test_batch_of_padding_gives_zero(logits):
    nothing = np.zeros((B, T), "int32")
    for reduction in ("mean_with_sample_weight", "sum"):
        assert to_numpy(MaskedCrossentropy(0.1, reduction=reduction)(nothing, logits)) == 0


@pytest.mark.once
@pytest.mark.parametrize(
    "labels, weights, message",
    [
        *(
            ((B, T), shape, "`sample_weight` must have a weight for each token")
            for shape in ((B, T, 1), (B, 1, 1), ())
        ),
        *(
            (shape, (B, T), r"`y_true` must have one label .* shape \(3, 5\)")
            for shape in ((B, 1), (B, T, 1), (B,), (B, T - 1))
        ),
    ],
)
@pytest.mark.parametrize("made", [MaskedCrossentropy(), MaskedAccuracy(), Perplexity()])
def test_labels_and_weights_of_other_shapes_are_refused(made, labels, weights, message, logits):
    with pytest.raises(ValueError, match=message):
        made(np.ones(labels, "int32"), logits, np.ones(weights, "float32"))


@pytest.mark.parametrize("label", [V, -1])
def test_label_outside_the_vocabulary_gives_nan_unless_its_weight_is_0(labels, logits, label):
    loss, perplexity, weights = MaskedCrossentropy(), Perplexity(), np.ones((B, T), "float32")
    weights[1, 2] = 0.0
    without = to_numpy(loss(labels, logits, weights))
    labels[1, 2] = label
    assert np.isnan(to_numpy(loss(labels, logits)))
    assert to_numpy(loss(labels, logits, weights)) == without
    perplexity.update_state(labels, logits, weights)
    np.testing.assert_allclose(float(perplexity.result()), np.exp(without), rtol=1e-6)
    perplexity.update_state(labels, logits)
    assert np.isnan(float(perplexity.result()))


@pytest.mark.once
def test_config_round_trip():
    loss = MaskedCrossentropy(0.2, pad_id=3, reduction="sum", name="tokens")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, MaskedCrossentropy)
    assert again.get_config() == loss.get_config()


@pytest.mark.once
def test_refuses_reductions_that_would_count_padding():
    with pytest.raises(ValueError, match="Received: reduction='mean'"):
        MaskedCrossentropy(reduction="mean")


TOKENS, D, SMOOTHING = 13, 5, 0.1


def problem():
    generator = np.random.default_rng(0)
    states = generator.normal(size=(TOKENS, D)).astype("float32")
    embeddings = generator.normal(size=(V, D)).astype("float32")
    labels = generator.integers(1, V, TOKENS).astype("int32")
    weights = generator.random(TOKENS).astype("float32")
    labels[3], weights[3] = 0, 0.0
    return states, embeddings, labels, weights


def by_torch(token_losses, states, embeddings, weights):
    """The sum of weighted losses of tokens, and its gradients, in float64."""
    arrays = (torch.tensor(x, dtype=torch.float64) for x in (states, embeddings))
    inputs = [x.requires_grad_() for x in arrays]
    total = (torch.tensor(weights) * token_losses(*inputs)).sum()
    return [x.detach().numpy() for x in (total, *torch.autograd.grad(total, inputs))]


def smoothed_losses(labels):
    """The loss of each token, of states and embeddings."""
    options = {"reduction": "none", "label_smoothing": SMOOTHING}
    loss, ids = torch.nn.functional.cross_entropy, torch.tensor(labels).long()
    return lambda states, embeddings: loss(states @ embeddings.T, ids, **options)


@pytest.mark.parametrize(  # `shift` of the weights: also both signs, or negative
    ("slice_size", "shift"),
    [(4, -0.5), *once((64, 0.0), (1, -1.0), (1, 0.0), (4, -1.0), (TOKENS, -0.5), (TOKENS, 0.0))],
)
def test_sums_and_gradients_are_those_of_pytorch(slice_size, shift):
    states, embeddings, labels, weights = problem()
    weights = np.where(labels == 0, 0, weights + shift).astype("float32")
    expected = by_torch(smoothed_losses(labels), states, embeddings, weights)

    def thrice_the_loss(states, embeddings):
        arguments = (ops.convert_to_tensor(labels), ops.convert_to_tensor(weights), slice_size)
        return 3 * sliced_crossentropy(states, embeddings, *arguments, SMOOTHING)[0]

    found = gradients_of(thrice_the_loss, states, embeddings)
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, 3 * wanted, rtol=1e-4, atol=1e-5)


ALPHA = 5.0


def r_drop_losses(first, second, log_p, log_q):
    change = (log_p.exp() - log_q.exp()) * (log_p - log_q)
    return (first + second) / 2 + ALPHA / 4 * change.sum(-1)


def simcut_losses(first, _, log_p, log_q):
    return first + ALPHA * (log_p.exp() * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize("slice_size", [4, *once(TOKENS)])
@pytest.mark.parametrize(
    "second_pass, token_loss",
    [(SecondPass.r_drop(ALPHA), r_drop_losses), (SecondPass.simcut(ALPHA), simcut_losses)],
    ids=["r_drop", "simcut"],
)
def test_two_passes_give_losses_and_divergences(slice_size, second_pass, token_loss):
    first, embeddings, labels, weights = problem()
    second = first + np.random.default_rng(1).normal(size=first.shape).astype("float32")

    def token_losses(states, embeddings):
        passes, one_pass = states.chunk(2), smoothed_losses(labels)
        logs = (torch.log_softmax(x @ embeddings.T, -1) for x in passes)
        return token_loss(*(one_pass(x, embeddings) for x in passes), *logs)

    def loss(states, embeddings):
        data = (ops.convert_to_tensor(labels), ops.convert_to_tensor(weights), slice_size)
        return sliced_crossentropy(states, embeddings, *data, SMOOTHING, second_pass)[0]

    states = np.concatenate([first, second])
    found = gradients_of(loss, states, embeddings)
    expected = by_torch(token_losses, states, embeddings, weights)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert_same_arrays(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slice_size", [4, *once(TOKENS)])
@pytest.mark.parametrize("second_pass", [*once(None), SecondPass(0.3, ALPHA, 0.0)])
def test_a_teacher_has_a_share_of_the_targets_of_each_pass(slice_size, second_pass):
    share, passes = 0.3, 2 if second_pass else 1
    first, embeddings, labels, weights = problem()
    generator = np.random.default_rng(1)
    states = np.concatenate([first, generator.normal(size=first.shape).astype("float32")][:passes])
    teacher = [generator.normal(size=(n, D + 2)).astype("float32") for n in (TOKENS, V)]

    def loss(teacher_weight):
        def loss(states, embeddings):
            data = (ops.convert_to_tensor(labels), ops.convert_to_tensor(weights), slice_size)
            of_teacher = tuple(map(ops.convert_to_tensor, teacher)) if teacher_weight else ()
            data += (SMOOTHING, second_pass, of_teacher, teacher_weight)
            return sliced_crossentropy(states, embeddings, *data)[0]

        return loss

    without, found = (gradients_of(loss(x), states, embeddings) for x in (0.0, share))
    smoothed = (1 - SMOOTHING) * np.eye(V)[labels] + SMOOTHING / V
    change = share * (softmax(teacher[0].astype("float64") @ teacher[1].T) - smoothed)
    parts = [0.7, 0.3] if second_pass else [1.0]
    change = np.concatenate([(x * weights)[:, None] * change for x in parts])
    log_p = np.log(softmax(states.astype("float64") @ embeddings.T))
    expected = -(change * log_p).sum(), -change @ embeddings, -change.T @ states
    for actual, before, added in zip(found, without, expected, strict=True):
        np.testing.assert_allclose(actual, before + added, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_all_three_sums(needs_gradient):
    states, embeddings, labels, weights = arrays = problem()
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    found = sliced_crossentropy(*tensors, 4, SMOOTHING, needs_gradient=needs_gradient)
    logits = states @ embeddings.T
    losses = (reference_losses(labels, logits, x) for x in (SMOOTHING, 0.0))
    expected = [(weights * x).sum() for x in (*losses, logits.argmax(-1) == labels)]
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-5)


def test_the_number_of_tokens_may_be_known_only_at_run_time():
    """TensorFlow traces a training step once for batches of all sizes."""
    if keras.config.backend() != "tensorflow":
        return
    import tensorflow as tf

    shapes = [(None, D), (V, D), (None,), (None,)]
    specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, problem(), strict=True)]

    @tf.function(input_signature=specs, jit_compile=True, autograph=False)
    def loss_and_gradients(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors[:2])
            loss = sliced_crossentropy(*tensors, 4, SMOOTHING)[0]
        return loss, *tape.gradient(loss, tensors[:2])

    states, embeddings, labels, weights = problem()
    expected = by_torch(smoothed_losses(labels), states, embeddings, weights)
    found = loss_and_gradients(states, embeddings, labels, weights)
    assert_same_arrays(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metric", [MaskedAccuracy(), Perplexity()])
def test_half_precision_does_not_lose_counts(metric):
    # bfloat16 counts no further than 256.
    labels = np.ones((1, 300), "int32")
    logits = keras.ops.cast(np.zeros((1, 300, 3)), "bfloat16")
    metric.reset_state()
    metric.update_state(labels, logits)
    assert [float(variable) for variable in metric.variables][1] == 300


def logits_for(predictions):
    return np.eye(5, dtype="float32")[np.array(predictions)]


def test_batches_add_up_by_tokens():
    metric = MaskedAccuracy()
    metric.update_state(np.array([[1, 2, 3]]), logits_for([[1, 2, 3]]))
    metric.update_state(np.array([[1, 0, 0]]), logits_for([[2, 0, 0]]))
    assert float(metric.result()) == 3 / 4
    metric.reset_state()
    assert float(metric(np.array([[0, 0]]), logits_for([[1, 0]]))) == 0


@pytest.mark.once
def test_the_crossentropy_is_finite_where_its_exponential_is_not():
    metric = Perplexity()
    metric.update_state(np.array([[1, 1]]), np.array([[[500.0, 0.0], [400.0, 0.0]]], "float32"))
    assert float(metric.result()) == np.inf and float(metric.crossentropy()) == 450
