"""Slices give the sums and gradients of all logits at once; those by hand in NumPy."""

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.gradients import gradients_of

from keras_transformer.training.sliced_crossentropy import sliced_crossentropy

TOKENS, D, V, SMOOTHING = 13, 5, 11, 0.1


def problem():
    generator = np.random.default_rng(0)
    states = generator.normal(size=(TOKENS, D)).astype("float32")
    embeddings = generator.normal(size=(V, D)).astype("float32")
    labels = generator.integers(1, V, TOKENS).astype("int32")
    weights = generator.random(TOKENS).astype("float32")
    labels[3], weights[3] = 0, 0.0
    return states, embeddings, labels, weights


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def by_hand(states, embeddings, labels, weights):
    """The three sums, and the gradients of the first, in float64."""
    states, embeddings, weights = (x.astype("float64") for x in (states, embeddings, weights))
    logits = states @ embeddings.T
    probabilities = softmax(logits)
    one_hot = np.eye(V)[labels]
    smoothed = (1 - SMOOTHING) * one_hot + SMOOTHING / V
    values = [
        -(smoothed * np.log(probabilities)).sum(-1),
        -(one_hot * np.log(probabilities)).sum(-1),
        logits.argmax(-1) == labels,
    ]
    d_logits = (probabilities - smoothed) * weights[:, None]
    return [(weights * x).sum() for x in values], d_logits @ embeddings, d_logits.T @ states


@pytest.mark.parametrize("slice_size", [1, 4, TOKENS, 64])
def test_sums_and_gradients_are_those_by_hand(slice_size):
    states, embeddings, labels, weights = problem()
    sums, d_states, d_embeddings = by_hand(states, embeddings, labels, weights)

    def thrice_the_loss(states, embeddings):
        arguments = (ops.convert_to_tensor(labels), ops.convert_to_tensor(weights), slice_size)
        return 3 * sliced_crossentropy(states, embeddings, *arguments, SMOOTHING)[0]

    found = gradients_of(thrice_the_loss, states, embeddings)
    for actual, expected in zip(found, (sums[0], d_states, d_embeddings), strict=True):
        np.testing.assert_allclose(actual, 3 * expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slice_size", [4, TOKENS])
def test_r_drop_is_the_mean_of_two_passes_and_of_their_divergences(slice_size):
    first, embeddings, labels, weights = problem()
    second = first + np.random.default_rng(1).normal(size=first.shape).astype("float32")
    alpha, step = 5.0, 1e-4

    def expected(first, second, embeddings):
        passes = [by_hand(x, embeddings, labels, weights)[0][0] for x in (first, second)]
        p, q = (softmax(x.astype("float64") @ embeddings.T) for x in (first, second))
        divergences = ((p - q) * (np.log(p) - np.log(q))).sum(-1)
        return np.mean(passes) + alpha / 4 * (weights * divergences).sum()

    def loss(states, embeddings):
        data = (ops.convert_to_tensor(labels), ops.convert_to_tensor(weights), slice_size)
        return sliced_crossentropy(states, embeddings, *data, SMOOTHING, alpha)[0]

    states = np.concatenate([first, second])
    value, *gradients = gradients_of(loss, states, embeddings)
    np.testing.assert_allclose(value, expected(first, second, embeddings), rtol=1e-5)
    generator = np.random.default_rng(2)
    moves = [generator.normal(size=x.shape) for x in (states, embeddings)]
    slope = sum((move * gradient).sum() for move, gradient in zip(moves, gradients, strict=True))
    ahead, behind = (
        expected(*np.split(states + sign * step * moves[0], 2), embeddings + sign * step * moves[1])
        for sign in (1, -1)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-4)


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_all_three_sums(needs_gradient):
    arrays = problem()
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    found = sliced_crossentropy(*tensors, 4, SMOOTHING, needs_gradient=needs_gradient)
    np.testing.assert_allclose(to_numpy(found), by_hand(*arrays)[0], rtol=1e-5)


def test_padding_alone_gives_zeros():
    states, embeddings, labels, weights = map(ops.convert_to_tensor, problem())
    found = sliced_crossentropy(states, embeddings, labels, ops.zeros_like(weights), 4)
    np.testing.assert_array_equal(to_numpy(found), 0)


def test_tiny_weights_leave_gradients_in_float16():
    states, embeddings, labels, weights = problem()
    d_states = by_hand(states, embeddings, labels, weights)[1]
    halves = (states.astype("float16"), embeddings.astype("float16"))

    def scaled_loss(states, embeddings):
        tiny = ops.convert_to_tensor(1e-9 * weights)
        loss = sliced_crossentropy(
            states, embeddings, ops.convert_to_tensor(labels), tiny, 4, SMOOTHING
        )[0]
        return 1e9 * loss

    found = gradients_of(scaled_loss, *halves)[1]
    np.testing.assert_allclose(found, d_states, atol=0.02)
