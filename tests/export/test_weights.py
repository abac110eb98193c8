import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.small_models import LENGTH, inputs_of, new_model, small_model

from keras_transformer.export.weights import array, in_float32, position_table


def test_arrays_are_float32_whatever_they_were():
    for dtype in ("bfloat16", "float32", "int32"):
        value = array(ops.cast([1, 2, 3], dtype))
        assert value.dtype == np.float32
        assert value.tolist() == [1, 2, 3]


def test_sinusoids_by_hand():
    table = position_table(small_model())
    rates = 10_000.0 ** (-np.arange(0, 12, 2) / 12)
    angles = np.arange(LENGTH)[:, None] * rates
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-5)


def test_learned_positions_are_the_weights():
    model = small_model("learned")
    table = position_table(model)
    np.testing.assert_array_equal(table, to_numpy(model.positions.position_embeddings))


@pytest.mark.parametrize("variant", ["rotary", "none"])
def test_nothing_is_added_where_positions_are_elsewhere(variant):
    assert position_table(small_model(variant)) is None


def test_a_model_in_mixed_precision_gets_a_twin_in_float32():
    model = new_model()
    assert in_float32(model) is model
    half = new_model(dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    twin = in_float32(half)
    inputs = inputs_of(model)
    np.testing.assert_allclose(to_numpy(twin(inputs)), to_numpy(model(inputs)), atol=1e-5)
    np.testing.assert_array_equal(position_table(half), position_table(model))
