"""Differences are held against rounding, and integers against equality."""

import numpy as np
import pytest

from keras_transformer.portability.rounding import Measured, change, differences, worst

pytestmark = pytest.mark.once
EPSILON = 2.0**-23


def measured(noise=0.0, **values):
    values = {name: np.array(x) for name, x in values.items()}
    noises = {
        name: np.broadcast_to(noise, x.shape if x.dtype.kind == "f" else x.shape[:1])
        for name, x in values.items()
    }
    return Measured(values, noises, EPSILON, 4)


def compare(one, other, noise=0.0):
    (found,) = differences(measured(noise, x=one), measured(noise, x=other))
    return found


def test_change_of_floats_is_by_element_and_infinite_for_a_nan_or_a_shape():
    one, other = np.array([1.0, 2.0, np.nan, np.inf]), np.array([1.5, 2.25, np.nan, np.inf])
    np.testing.assert_array_equal(change(one, other), [0.5, 0.25, 0, 0])
    assert change(np.array([np.nan]), np.array([1.0])) == np.inf
    assert change(np.zeros(2), np.zeros(3)) == np.inf


def test_tolerance_is_the_noise_times_the_root_of_the_terms():
    found = compare([1.0, -8.0], [1.0, -8.0])
    assert found.tolerance == pytest.approx(2 * 2 * 8 * EPSILON)  # noise: an ulp of the largest
    assert not found.parts and found.ratio == 0
    assert compare([1.0], [1.0], noise=0.25).tolerance == 1.0


def test_what_exceeds_the_tolerance_parts():
    assert not compare([1.0], [1.0 + 3 * EPSILON]).parts
    assert compare([1.0], [1.0 + 5 * EPSILON]).parts
    assert compare([np.nan], [1.0]).parts


def test_a_large_constant_does_not_hide_a_difference_beside_it():
    found = compare([[1.0, -1e9]], [[6.0, -1e9]], noise=[[1e-7, 64.0]])
    assert found.parts and found.largest == 5 and found.tolerance < 1e-5
    assert not compare([1.0, -1e9], [1.0, -1e9 + 64]).parts
    assert compare([1.0, -1e9], [1.0, -2e9]).parts


def test_what_rounding_makes_nan_is_not_compared_and_hides_nothing():
    noise = [0.0, np.inf]
    assert compare([1.0, np.nan], [6.0, 0.5], noise).parts
    assert not compare([1.0, np.nan], [1.0, 0.5], noise).parts


def test_a_nan_that_only_one_backend_has_parts():
    one, other = measured(x=[1.0, np.nan], noise=[0.0, np.inf]), measured(x=[1.0, 0.5])
    for (found,) in (differences(one, other), differences(other, one)):
        assert found.parts


def test_shapes_part_unless_rounding_decides_them():
    assert compare([1.0], [1.0, 2.0]).parts
    assert compare([], [1.0]).parts
    assert not compare([1.0], [1.0, 2.0], noise=np.inf).parts


def test_an_array_of_one_backend_parts():
    more, less = measured(x=[1.0], y=[2]), measured(x=[1.0])
    for found in (differences(more, less), differences(less, more)):
        assert [(x.name, x.parts) for x in found] == [("x", False), ("y", True)]


def test_rows_of_integers_part_unless_rounding_decides_them():
    found = compare([[1], [2], [3]], [[1], [5], [6]], noise=[0.0, 0.0, 1.0])
    assert (found.largest, found.tolerance, found.parts) == (1, 0, True)
    assert not compare([[1], [2]], [[1], [5]], noise=[0.0, 1.0]).parts


def test_equality_without_tolerance_hides_no_difference_beside_it():
    assert compare([0.0], [0.0]).ratio == 0 and compare([1], [2]).ratio == np.inf
    one = measured(ids=[1, 2], scores=[-1.0, -2.0])
    other = measured(ids=[1, 2], scores=[-1.0, -9.0])
    found = worst(differences(one, other))
    assert found.name == "scores" and found.parts
    assert compare([1e7, 2e7], [1e7, 9e7]).parts  # no number is small
