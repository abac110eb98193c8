"""The arithmetic of the benchmark; what it measures is no test's affair."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from vocabulary_memory import Curve, row  # noqa: E402

SIZES = [1000, 2000, 4000]


def test_the_slope_is_in_logits_of_the_batch():
    """4,096 tokens' logits of one entry of the vocabulary take 16,384 bytes."""
    megabytes = [100 + 3 * 16_384 * size / 1e6 for size in SIZES]
    found = row(Curve("ours", "jax"), SIZES, megabytes)
    assert (found["engine"], found["mb_2000"]) == ("ours", megabytes[1])
    assert (found["mb_fixed"], found["logits"]) == (100, 3)
