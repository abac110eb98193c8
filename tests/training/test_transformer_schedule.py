"""The learning rate follows equation 3 of the paper."""

import keras
import numpy as np
import pytest

from keras_transformer.training import TransformerSchedule


def rates(schedule, updates):
    return np.array([keras.ops.convert_to_numpy(schedule(update)) for update in updates])


def test_warmup_rises_linearly_from_the_first_update():
    # 64^-0.5 = 1/8 and 16^-1.5 = 1/64: step s of the warm-up has rate s/512.
    schedule = TransformerSchedule(d_model=64, warmup_steps=16)
    np.testing.assert_allclose(rates(schedule, range(16)), np.arange(1, 17) / 512, rtol=1e-6)


def test_decays_with_the_inverse_square_root_after_warmup():
    # Steps 16, 64, 256 and 1024: 1/8 over their square roots.
    schedule = TransformerSchedule(d_model=64, warmup_steps=16)
    expected = np.array([1 / 32, 1 / 64, 1 / 128, 1 / 256])
    np.testing.assert_allclose(rates(schedule, [15, 63, 255, 1023]), expected, rtol=1e-6)


def test_scale_multiplies_the_curve():
    plain, double = TransformerSchedule(d_model=7), TransformerSchedule(d_model=7, scale=2.0)
    steps = [0, 10, 3999, 100_000]
    np.testing.assert_allclose(rates(double, steps), 2 * rates(plain, steps), rtol=1e-6)


def test_peak_is_reached_at_warmup_steps():
    schedule = TransformerSchedule(peak=0.002, warmup_steps=100)
    expected = [0.002 / 100, 0.002 / 2, 0.002, 0.001]  # steps 1, 50, 100 and 400
    np.testing.assert_allclose(rates(schedule, [0, 49, 99, 399]), expected, rtol=1e-6)


def test_rate_is_float32_for_integer_steps():
    step = keras.ops.convert_to_tensor(3, dtype="int32")
    rate = TransformerSchedule(d_model=8)(step)
    assert keras.backend.standardize_dtype(rate.dtype) == "float32"


def test_config_round_trip():
    schedule = TransformerSchedule(d_model=8, warmup_steps=5, scale=3.0)
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert isinstance(again, TransformerSchedule)
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize("arguments", [{}, {"d_model": 8, "peak": 0.1}])
def test_takes_exactly_one_of_d_model_and_peak(arguments):
    with pytest.raises(ValueError, match="Exactly one .* Received: d_model="):
        TransformerSchedule(**arguments)


def test_refuses_no_warmup():
    with pytest.raises(ValueError, match="Received: warmup_steps=0"):
        TransformerSchedule(d_model=8, warmup_steps=0)
