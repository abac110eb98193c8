import itertools

import numpy as np
import pytest

from keras_transformer.data.length_buckets import choose_buckets


def some_lengths(count=2_000, longest=50):
    rng = np.random.default_rng(3)
    source = np.clip(rng.normal(15, 6, count).round(), 1, longest).astype(np.int32)
    target = np.clip(source + rng.integers(-4, 5, count), 1, longest).astype(np.int32)
    return source, target


def cost(widths, source, target):
    """Positions of the narrowest width of each pair, a target position counted twice."""
    costs = [
        np.where((source <= s) & (target <= t), s + 2 * t, np.iinfo(np.int64).max)
        for s, t in widths
    ]
    return np.min(costs, axis=0)


@pytest.mark.parametrize("length_multiple", [1, 4, 8])
@pytest.mark.parametrize("max_shapes", [1, 2, 8])
def test_every_pair_lies_in_the_narrowest_width_that_holds_it(length_multiple, max_shapes):
    source, target = some_lengths()
    widths, buckets = choose_buckets(source, target, length_multiple, max_shapes)
    assert len(widths) <= max_shapes
    assert all(s % length_multiple == 0 and t % length_multiple == 0 for s, t in widths)
    chosen = np.array(widths)[buckets]
    assert (chosen[:, 0] >= source).all()
    assert (chosen[:, 1] >= target).all()
    assert (chosen @ [1, 2] == cost(widths, source, target)).all()


def test_widest_is_no_wider_than_needed():
    widths, _ = choose_buckets(np.array([3, 40]), np.array([9, 2]), 4, 8)
    assert max(widths) == (40, 4) or widths[-1] == (40, 12)
    assert widths[-1] == (40, 12)


def test_few_distinct_lengths_need_no_padding():
    source = np.array([8] * 5 + [16] * 3 + [24])
    target = np.array([16] * 5 + [16] * 3 + [8])
    widths, buckets = choose_buckets(source, target, 8, 4)
    assert [widths[bucket] for bucket in buckets] == list(zip(source, target, strict=True))


def test_search_comes_near_the_best_choice():
    source, target = some_lengths(400, longest=24)
    corners = list(itertools.product(range(4, 25, 4), repeat=2))
    best = min(
        cost([*others, (24, 24)], source, target).sum()
        for others in itertools.combinations(corners, 2)
    )
    widths, _ = choose_buckets(source, target, 4, 3)
    assert cost(widths, source, target).sum() <= 1.02 * best


def test_one_very_long_sentence_does_not_spoil_the_others():
    source, target = some_lengths()
    source[0] = target[0] = 10_000
    widths, buckets = choose_buckets(source, target, 8, 8)
    positions = np.array(widths)[buckets[1:]]
    assert positions[:, 1].mean() < 1.5 * target[1:].mean()
