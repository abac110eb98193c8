"""Compares the arrays of two backends. The tolerances follow from the effect of rounding."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Measured(NamedTuple):
    """Arrays of one backend, and how rounding changes them.

    Attributes:
        values: Dict from names to arrays.
        noise: Dict from the same names to the largest changes of each array (see `change`) when all
            weights and float inputs change by one unit in the last place.
        epsilon: Difference between 1 and the next larger number, in the least precise dtype of the
            layers.
        terms: Number of terms of the longest sum in the model, such as a matrix product or a
            gradient. The number is estimated from the shapes of weights and inputs.
    """

    values: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]
    epsilon: float
    terms: int

    def save(self, path: Path) -> None:
        """Writes an .npz file."""
        arrays: dict[str, Any] = {f"values {name}": x for name, x in self.values.items()}
        arrays |= {f"noise {name}": x for name, x in self.noise.items()}
        np.savez(path, **arrays, epsilon=self.epsilon, terms=self.terms)

    @classmethod
    def load(cls, path: Path) -> "Measured":
        """Reads what `save` wrote."""
        with np.load(path) as file:
            found = dict(file)
        epsilon, terms = float(found.pop("epsilon")), int(found.pop("terms"))
        parts: dict[str, dict[str, np.ndarray]] = {"values": {}, "noise": {}}
        for key, array in found.items():
            part, _, name = key.partition(" ")
            parts[part][name] = array
        return cls(**parts, epsilon=epsilon, terms=terms)


class ArrayDifference(NamedTuple):
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
        if self.tolerance:
            return self.largest / self.tolerance
        return math.inf if self.parts else 0.0

    def __str__(self) -> str:
        return f"{self.largest:.1e} / {self.tolerance:.1e}"


def change(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the absolute differences of two float arrays.

    For other dtypes, returns a bool array that marks unequal rows. A difference is infinite if only
    one of the two numbers is NaN. If the shapes or kinds of dtype differ, returns infinity.
    """
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return np.array(math.inf)
    is_same = (one == other) | ((one != one) & (other != other))
    if one.dtype.kind != "f":
        rows = np.atleast_1d(is_same)
        return np.array(~rows.all(axis=tuple(range(1, rows.ndim))))
    with np.errstate(invalid="ignore"):
        differences = np.where(is_same, 0.0, np.abs(one.astype("float64") - other))
    return np.asarray(np.nan_to_num(differences, nan=math.inf, posinf=math.inf))


def differences(one: Measured, other: Measured) -> list[ArrayDifference]:
    """Compares the arrays of two backends.

    Floats may differ by 2 sqrt(n) times the array's noise, where n is the number of terms of the
    longest sum in the model. The noise is at least one unit in the last place of the array's
    largest number. The rounding error of n additions grows with sqrt(n) (Higham and Mary 2019).
    Each of the two backends has such an error, so the factor is 2 sqrt(n).

    Numbers of absolute value above 1 / epsilon, such as -1e9 in a mask, have their own noise. They
    therefore do not raise the tolerance of smaller numbers. An element is not compared if it
    becomes NaN or infinite on both backends when weights and inputs change by one unit in the last
    place.

    Integers are compared by row. A row is not compared if it changes on one of the backends when
    weights and inputs change by one unit in the last place. All other rows must be equal.
    """
    names = dict.fromkeys([*one.values, *other.values])
    return [_difference(name, one, other) for name in names]


def worst(found: Iterable[ArrayDifference]) -> ArrayDifference | None:
    """Returns the difference that is largest relative to its tolerance, or None."""
    return max(found, key=lambda difference: difference.ratio, default=None)


def _difference(name: str, one: Measured, other: Measured) -> ArrayDifference:
    if not (name in one.values and name in other.values):
        return ArrayDifference(name, math.inf, 0.0)
    a, b = one.values[name], other.values[name]
    changes = change(a, b)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        undecided = any(x.size and np.isinf(x).all() for x in (one.noise[name], other.noise[name]))
        return ArrayDifference(name, 0.0 if undecided else math.inf, 0.0)
    noises = np.stack(np.broadcast_arrays(one.noise[name], other.noise[name]))
    if a.dtype.kind != "f":
        return ArrayDifference(name, float(np.sum(changes > noises.max(axis=0))), 0.0)
    is_known = np.isfinite(noises)
    noise, is_decided = noises.max(axis=0, initial=0.0, where=is_known), is_known.any(axis=0)
    epsilon, factor = max(one.epsilon, other.epsilon), 2 * math.sqrt(max(one.terms, other.terms))
    size = np.where(np.isfinite(a), np.abs(a), 0.0)
    is_large = size > 1 / epsilon
    found = []
    for part in (is_decided & ~is_large, is_decided & is_large):
        largest = max(np.max(x, initial=0.0, where=part) for x in (noise, epsilon * size))
        largest_change = np.max(changes, initial=0.0, where=part)
        found.append(ArrayDifference(name, float(largest_change), float(factor * largest)))
    return max(found, key=lambda difference: difference.ratio)
