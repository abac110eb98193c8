"""Differences are held against rounding, and integers against equality."""

import numpy as np
import pytest

from keras_transformer.portability.compare import Measured, change, differences, worst

EPSILON = 2.0**-23


def measured(noise=0.0, **values):
    values = {name: np.array(x) for name, x in values.items()}
    return Measured(values, {name: np.asarray(noise) for name in values}, EPSILON, 4)


def compare(one, other, noise=0.0):
    (found,) = differences(measured(noise, x=one), measured(noise, x=other))
    return found


def test_change_of_floats_is_the_largest_and_infinite_for_a_nan_or_a_shape():
    assert change(np.array([1.0, 2.0]), np.array([1.5, 2.25])) == 0.5
    assert change(np.array([np.nan, np.inf]), np.array([np.nan, np.inf])) == 0
    assert change(np.array([np.nan]), np.array([1.0])) == np.inf
    assert change(np.zeros(2), np.zeros(3)) == np.inf


def test_change_of_integers_is_by_row():
    np.testing.assert_array_equal(
        change(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]])), [0, 1]
    )


def test_tolerance_is_the_noise_times_the_root_of_the_terms():
    found = compare([1.0, -8.0], [1.0, -8.0])
    assert found.tolerance == pytest.approx(2 * 2 * 8 * EPSILON)  # noise: an ulp of the largest
    assert not found.parts and found.ratio == 0
    assert compare([1.0], [1.0], noise=0.25).tolerance == 1.0


def test_what_exceeds_the_tolerance_parts():
    assert not compare([1.0], [1.0 + 3 * EPSILON]).parts
    assert compare([1.0], [1.0 + 5 * EPSILON]).parts
    assert compare([np.nan], [1.0]).parts


def test_rows_of_integers_part_unless_rounding_decides_them():
    found = compare([[1], [2], [3]], [[1], [5], [6]], noise=[0.0, 0.0, 1.0])
    assert (found.largest, found.tolerance, found.parts) == (1, 0, True)
    assert not compare([[1], [2]], [[1], [5]], noise=[0.0, 1.0]).parts


def test_the_worst_exceeds_its_own_tolerance_most():
    found = differences(measured(a=[100.0], b=[1.0]), measured(a=[100.0 + 2e-5], b=[1.0 + 1e-5]))
    assert worst(found).name == "b"
    assert worst([]) is None
