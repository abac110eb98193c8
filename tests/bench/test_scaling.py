"""The arithmetic of the scaling model, by hand, and its simulation against it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.models import Transformer

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

import scaling  # noqa: E402
from _training_engines import Case  # noqa: E402
from scaling import Layout, Machine  # noqa: E402

MACHINE = Machine(
    flops=1e12, utilization=0.5, node_size=4, node_bandwidth=1e9, node_latency=1e-3,
    network_bandwidth=1e8, network_latency=1e-2,
)  # fmt: skip


def test_a_ring_passes_two_messages_less_than_twice_its_members():
    # 3 members: 4 messages of 10 bytes at 5 bytes/s, a second each to set out.
    assert scaling.ring_seconds(30, 3, bandwidth=5, latency=1) == 4 * (10 / 5 + 1)
    assert scaling.ring_seconds(30, 1, bandwidth=5, latency=1) == 0


def test_gradients_go_through_the_node_and_then_between_nodes():
    layout = Layout(replicas=6, split=2, node_size=4)
    assert (layout.in_node, layout.nodes) == (2, 3)
    within = 2 * (3e6 / 2 / 1e9 + 1e-3)
    between = 4 * (1.5e6 / 3 / 1e8 + 1e-2)
    found = scaling.gradient_seconds(3e6, MACHINE, layout)
    np.testing.assert_allclose(found, within + between)


@pytest.mark.parametrize("replicas, split", [(1, 4), (4, 1), (8, 1), (6, 2), (8, 4)])
def test_without_variation_the_simulation_is_the_formula(replicas, split):
    layout = Layout(replicas, split, MACHINE.node_size)
    compute = np.full((layout.nodes, layout.in_node), 3.0)
    found = scaling.simulate(compute, 3e6, 1, MACHINE, layout)
    np.testing.assert_allclose(found, 3 + scaling.gradient_seconds(3e6, MACHINE, layout))


def test_all_wait_for_the_slowest():
    layout = Layout(8, 1, MACHINE.node_size)
    compute = np.full((2, 4), 3.0)
    compute[1, 2] = 5.0
    found = scaling.simulate(compute, 3e6, 1, MACHINE, layout)
    np.testing.assert_allclose(found, 5 + scaling.gradient_seconds(3e6, MACHINE, layout))


def test_messages_that_leave_early_hide_behind_compute():
    # Ready after 2 and 3 s; a half takes less than a second: only the last one is seen.
    layout = Layout(2, 1, MACHINE.node_size)
    half = scaling.gradient_seconds(4e5, MACHINE, layout)
    assert half < 1
    found = scaling.simulate(np.full((1, 2), 3.0), 8e5, 2, MACHINE, layout)
    np.testing.assert_allclose(found, 3 + half)


def test_parameters_are_those_of_the_model():
    model = Transformer(29, num_layers=2, d_model=14, num_heads=2, d_ff=11)
    case = Case("any", 2, 14, 2, 11, 29, batch_size=3, source_length=5, target_length=7)
    assert scaling.parameters(case) == model.count_params()


def test_sums_of_split_layers_by_hand():
    case = Case("any", 2, 14, 2, 11, 29, batch_size=3, source_length=5, target_length=7)
    source, target = 3 * 5 * 14 * 2, 3 * 7 * 14 * 2
    # 21 tokens in slices of 14.
    assert scaling.layer_sums(case) == [(11, source), (14, target), (4, 4 * 14)]
