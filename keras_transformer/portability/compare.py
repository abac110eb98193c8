"""Compares arrays of two backends. What differs by no more than rounding conforms."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Measured(NamedTuple):
    """Arrays of one backend, and how they change by rounding.

    Attributes:
        values: The arrays by name.
        noise: The changes of each array (see `change`) when every weight and float input changes by
            one unit in the last place.
        epsilon: Spacing of the numbers near 1, of the least precise layer.
        terms: Number of terms of the longest sum.
    """

    values: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]
    epsilon: float
    terms: int


class Difference(NamedTuple):
    """The difference of an array between two backends, and the largest that rounding explains."""

    name: str
    largest: float
    tolerance: float

    @property
    def parts(self) -> bool:
        return self.largest > self.tolerance

    @property
    def ratio(self) -> float:
        return self.largest / self.tolerance if self.tolerance else math.inf * self.parts or 0.0

    def __str__(self) -> str:
        return f"{self.largest:.1e} of {self.tolerance:.1e}"


def change(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the largest absolute difference of floats, or for each row of others if it differs.

    It is infinite if the shapes differ, or if only one of two numbers is NaN.
    """
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return np.array(math.inf)
    is_same = (one == other) | ((one != one) & (other != other))
    if one.dtype.kind != "f":
        rows = np.atleast_1d(is_same)
        return np.array(~rows.all(axis=tuple(range(1, rows.ndim))))
    with np.errstate(invalid="ignore"):
        differences = np.where(is_same, 0.0, np.abs(one.astype("float64") - other))
    return np.array(np.nan_to_num(differences, nan=math.inf, posinf=math.inf).max(initial=0.0))


def differences(one: Measured, other: Measured) -> list[Difference]:
    """Compares all arrays of two backends that have the same name.

    Floats may differ by 2 sqrt(n) times their rounding noise; n is the number of terms of the
    longest sum. The noise is what one unit in the last place of all weights and inputs changes, at
    least one unit in the last place of the array's largest number. Backends add the terms of a sum
    in different orders; the rounding errors of n additions grow with sqrt(n) (Higham and Mary 2019)
    and occur on both sides. Rows of integers must be equal, unless one unit in the last place also
    changes them on a backend.
    """
    return [_difference(name, one, other) for name in one.values if name in other.values]


def worst(found: Iterable[Difference]) -> Difference | None:
    """Returns the difference that exceeds its tolerance most, relative to the tolerance."""
    return max(found, key=lambda difference: difference.ratio, default=None)


def _difference(name: str, one: Measured, other: Measured) -> Difference:
    a, b = one.values[name], other.values[name]
    changes = change(a, b)
    if a.dtype.kind != "f" or changes.size != 1 or not np.isfinite(changes):
        undecided = np.maximum(one.noise[name], other.noise[name])
        is_part = changes > undecided if changes.shape == undecided.shape else changes
        return Difference(name, float(np.sum(is_part)), 0.0)
    finite = np.abs(a[np.isfinite(a)])
    epsilon = max(one.epsilon, other.epsilon)
    noise = max(one.noise[name], other.noise[name], epsilon * np.max(finite, initial=0.0))
    terms = max(one.terms, other.terms)
    return Difference(name, float(changes), float(2 * math.sqrt(terms) * noise))
