"""Compares arrays of two backends, and derives from rounding how much they may differ."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Measured(NamedTuple):
    """Arrays of one backend, and how rounding changes them.

    Attributes:
        values: The arrays by name.
        noise: The largest change of each array (see `change`) when all weights and float inputs
            change by one unit in the last place.
        epsilon: Difference between 1 and the next larger number, in the least precise dtype of the
            layers.
        terms: Number of terms of the longest sum in the model.
    """

    values: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]
    epsilon: float
    terms: int


class Difference(NamedTuple):
    """Largest difference of an array between two backends, and the tolerance for rounding."""

    name: str
    largest: float
    tolerance: float

    @property
    def parts(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        return self.largest > self.tolerance

    @property
    def ratio(self) -> float:
        return self.largest / self.tolerance if self.tolerance else math.inf * self.parts or 0.0

    def __str__(self) -> str:
        return f"{self.largest:.1e} of {self.tolerance:.1e}"


def change(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the largest absolute difference of float arrays; of others, which rows are unequal.

    The result is infinite if the shapes differ, or if only one of two numbers is NaN.
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
    """Compares the arrays of two backends that have the same name.

    The tolerance for floats is 2 sqrt(n) times the array's noise; n is the number of terms of the
    longest sum in the model. The noise is the array's largest change when all weights and inputs
    change by one unit in the last place, and at least one unit in the last place of the array's
    largest number. The factor is 2 sqrt(n) because backends add terms in different orders: the
    rounding errors of n additions grow with sqrt(n) (Higham and Mary 2019), on both backends.
    Integers must be equal, except in rows that this change of weights and inputs also changes.
    """
    return [_difference(name, one, other) for name in one.values if name in other.values]


def worst(found: Iterable[Difference]) -> Difference | None:
    """Returns the difference that is largest relative to its tolerance, or None."""
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
