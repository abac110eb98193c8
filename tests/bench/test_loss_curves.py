"""The arithmetic of the benchmark; what it measures is no test's affair."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from loss_curves import PEERS, TRAINER, Curve, report  # noqa: E402

LOSSES = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5]


def test_differences_are_the_largest_up_to_a_step_from_the_same_backends_trainer():
    peer = [loss - 0.25 * (i == 3) + 0.5 * (i == 10) for i, loss in enumerate(LOSSES)]
    found = {
        Curve(TRAINER, "torch"): [0.0] * 11,
        Curve(TRAINER, "jax"): LOSSES,
        Curve(PEERS[0], "jax"): peer,
    }
    own, _, other = report(found)
    assert (own["step_1"], own["step_10"], own["last_loss"]) == (0, 0, 0)
    assert (other["step_1"], other["step_10"], other["last_loss"]) == (0, 0.25, 1.0)
    assert "step_50" not in other
