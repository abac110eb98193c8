"""The arithmetic of the benchmark; what it measures is no test's affair."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from _attention_layers import (
    path_length,  # noqa: E402
    row as layer_row,  # noqa: E402
)
from _attention_memory import exponent  # noqa: E402
from _attention_scores import statistics  # noqa: E402
from _attention_time import row as time_row  # noqa: E402

LENGTHS = [128, 256, 512, 1024]


@pytest.mark.parametrize("power", [0, 1, 1.5, 2])
def test_exponents_are_those_of_powers(power):
    assert exponent(LENGTHS, [3 * n**power for n in LENGTHS]) == power


def test_exponents_are_of_the_longer_lengths():
    assert exponent(LENGTHS, [1e6, 256, 512, 1024]) == 1
    assert exponent(LENGTHS[:1], [1.0]) is None


def test_times_are_beside_those_of_all_scores_in_the_same_round():
    rounds = [{"dense": s, "fixed": s / 4} for s in (0.1, 0.4, 0.2)]  # a machine that slows down
    row = time_row("fixed", "jax", {128: rounds, 256: rounds})
    assert (row["ms_128"], row["ratio_256"]) == (50, 0.25)
    assert "ratio_128" not in time_row("fixed", "jax", {128: [{"fixed": 0.1}]})


@pytest.mark.parametrize(
    "name, reach, path",
    [
        ("self-attention", 500, 1),
        ("r = 64", 64, 16),
        ("k = 5", 2, 500),
        ("recurrent (LSTM)", 9, 1000),
    ],
)
def test_paths_are_as_many_layers_as_reach_across(name, reach, path):
    assert path_length(name, 1000, reach) == path


def test_milliseconds_and_sequential_operations():
    row = layer_row("recurrent (LSTM)", {n: n / 1000 for n in LENGTHS}, 512)
    assert (row["ms_256"], row["exponent"], row["sequential"], row["path"]) == (256, 1, 1024, 1024)


def test_equal_and_saturated_weights():
    scores = np.array([[1.0, -1.0, 1.0, -1.0]])
    equal = statistics(scores, np.full((1, 4), 0.25))
    assert equal == {
        "variance": 1,
        "largest_weight": 0.25,
        "entropy": round(np.log(4), 4),
        "derivative": 0.75,
    }
    saturated = statistics(scores, np.eye(4)[:1])
    assert (saturated["largest_weight"], saturated["entropy"], saturated["derivative"]) == (1, 0, 0)
