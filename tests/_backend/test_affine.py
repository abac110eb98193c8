"""Scale and shift: values and gradients as NumPy sums them."""

import numpy as np
import pytest
from keras import ops
from support.gradients import gradients_of

from keras_transformer._backend.affine import scale_and_shift

B, T, D = 3, 37, 5


@pytest.mark.parametrize("training", [False, True])
def test_value_and_gradients(training):
    generator = np.random.default_rng(0)
    x, factors = generator.normal(size=(2, B, T, D)).astype("float32")
    scale, shift = generator.normal(size=(2, D)).astype("float32")

    def total(x, scale, shift, factors):
        return ops.sum(factors * scale_and_shift(x, scale, shift, training))

    value, of_x, of_scale, of_shift, _ = gradients_of(total, x, scale, shift, factors)
    np.testing.assert_allclose(value, (factors * (x * scale + shift)).sum(), rtol=1e-4)
    np.testing.assert_allclose(of_x, factors * scale, rtol=1e-6)
    np.testing.assert_allclose(of_scale, (factors * x).sum((0, 1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_shift, factors.sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_without_scale_or_shift():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert scale_and_shift(x, training=True) is x
