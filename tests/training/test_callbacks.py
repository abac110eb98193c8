"""Callbacks count optimizer steps, whatever the accumulation."""

import itertools

import keras
import numpy as np
import pytest
from support.cases import once

from keras_transformer.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    TransformerAdam,
)
from keras_transformer.training.callbacks import Steps

V, T = 5, 3


def new_model(accumulation_steps=1, learning_rate=0.1, dropout_rate=0.0):
    """Logits (B, T, V) from a target id and the source id above it, the same every time."""
    names = ("source_ids", "target_ids")
    inputs = {name: keras.Input((T,), dtype="int32", name=name) for name in names}
    x = sum(keras.layers.Embedding(V, V)(ids) for ids in inputs.values())
    model = keras.Model(inputs, keras.layers.Dropout(dropout_rate)(x))
    for weight in model.weights:
        weight.assign(np.linspace(-1, 1, V * V).reshape(V, V))
    many = accumulation_steps if accumulation_steps > 1 else None
    model.compile(
        TransformerAdam(learning_rate, gradient_accumulation_steps=many),
        loss=MaskedCrossentropy(),
        metrics=[MaskedAccuracy(), Perplexity()],
    )
    return model


def one_batch():
    labels = np.array([[1, 2, 3], [4, 0, 0]], "int32")
    return {"source_ids": labels, "target_ids": labels}, labels, (labels > 0).astype("float32")


def fit(model, steps_per_epoch, epochs, *callbacks, initial_epoch=0):
    """Train on one micro-batch over and over."""
    model.fit(
        (batch for batch in itertools.repeat(one_batch())),
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        callbacks=list(callbacks),
        verbose=0,
    )


class Reports(list):
    """Keeps what it is told."""

    def report(self, step, values):
        self.append((step, dict(values)))


@pytest.mark.each_backend
@pytest.mark.parametrize("accumulation_steps", [2, *once(1)])
def test_steps_are_counted_over_epochs_and_processes(accumulation_steps):
    reports, model = Reports(), new_model(accumulation_steps)
    steps = Steps(3, accumulation_steps, [reports], report_every=2)
    fit(model, 3 * accumulation_steps, 3, steps, initial_epoch=1)
    assert [step for step, _ in reports] == [5, 6, 8, 9]


def test_reports_are_means_since_the_last_one():
    each, pairs = Reports(), Reports()
    fit(new_model(), 4, 1, Steps(reporters=[each], report_every=1))
    fit(new_model(), 4, 1, Steps(reporters=[pairs], report_every=2))
    losses = np.array([values["loss"] for _, values in each])
    assert len(set(losses)) == 4
    expected = [losses[:2].mean(), losses[2:].mean()]
    np.testing.assert_allclose([values["loss"] for _, values in pairs], expected, rtol=1e-5)


@pytest.mark.each_backend
def test_dropout_is_a_function_of_seed_and_step():
    # A rate of 0 leaves the weights alone: gradients differ by dropout only.
    model = new_model(learning_rate=0.0, dropout_rate=0.5)

    def norms(seed, initial_epoch):
        found = Reports()
        steps = Steps(2 * initial_epoch, reporters=[found], seed=seed, report_every=1)
        fit(model, 2, 3, steps, initial_epoch=initial_epoch)
        return [values["gradient_norm"] for _, values in found]

    whole = norms(seed=1, initial_epoch=0)
    assert len(set(whole)) == len(whole)
    assert norms(seed=1, initial_epoch=1) == whole[2:]
    assert norms(seed=2, initial_epoch=1) != whole[2:]
