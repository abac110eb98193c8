"""Sequences of any lengths are in batches of few shapes."""

import numpy as np
import pytest

from keras_transformer.decoding.batches import (
    FEW_SHAPES,
    FIXED_SHAPES,
    fixed_shapes,
    length_batches,
    pair_batches,
)

pytestmark = pytest.mark.once


def test_every_sequence_is_in_one_batch_and_fits_and_the_longest_come_first():
    (batch,) = length_batches([3, 14, 5, 3], tokens_per_batch=64, longest=64)
    assert batch.indices == [1, 2, 0, 3]
    lengths = np.random.default_rng(1).integers(1, 101, 500).tolist()
    batches = list(length_batches(lengths, tokens_per_batch=256, longest=100))
    assert sorted(index for batch in batches for index in batch.indices) == list(range(500))
    for indices, rows, width in batches:
        assert len(indices) <= rows
        assert max(lengths[index] for index in indices) <= width <= 100
        assert rows * width <= 256


def test_long_lists_have_one_shape_a_width():
    generator = np.random.default_rng(2)
    shapes = set()
    for count in (1000, 777, 501):
        batches = length_batches(generator.integers(1, 65, count).tolist(), 256, longest=64)
        shapes |= {(rows, width) for _, rows, width in batches}
    assert shapes == {(32, 8), (16, 16), (8, 32), (4, 64)}
    too_long = list(length_batches([100, 90], tokens_per_batch=64, longest=100))
    assert too_long == [([0], 1, 100), ([1], 1, 100)]


def test_pairs_are_as_wide_as_the_longer_side():
    sources = [[5, 3], [6, 3], [7, 8, 3]]
    targets = [[[2], [2, 4]], [[2, *[4] * 8], [2]], [[2], [2]]]
    batches = pair_batches(sources, targets, tokens_per_batch=16, longest=64, pad_id=0)
    (first, source_ids, target_ids), (second, _, others) = batches
    assert (first, source_ids.shape, target_ids.shape) == ([1], (1, 16), (1, 2, 16))
    np.testing.assert_array_equal(source_ids[0], [6, 3, *[0] * 14])
    np.testing.assert_array_equal(target_ids[0, 0], [2, *[4] * 8, *[0] * 7])
    assert (second, others.shape) == ([2, 0], (2, 2, 8))
    np.testing.assert_array_equal(others[1, :, :2], [[2, 0], [2, 4]])


def test_a_short_list_has_one_shape_unless_one_is_much_longer():
    def shapes(lengths):
        batches = length_batches(lengths, 2048, longest=1024, shapes=FEW_SHAPES)
        return [(len(indices), rows, width) for indices, rows, width in batches]

    assert shapes([40, *[20] * 99]) == [(32, 32, 64)] * 3 + [(4, 32, 64)]
    assert shapes([40, *[20] * 299]) == [(32, 32, 64), *[(64, 64, 32)] * 4, (12, 64, 32)]
    assert shapes([600, *[20] * 9]) == [(2, 2, 1024), (8, 16, 32)]


@pytest.mark.parametrize(
    ("most", "tokens", "longest"), [(64, 2048, 256), (64, 512, 60), (5, 9, 99)]
)
def test_a_server_knows_all_shapes_of_its_batches(most, tokens, longest):
    known = {*fixed_shapes(most, tokens, longest)}
    assert len(known) <= 9
    generator, found = np.random.default_rng(4), set()
    for _ in range(300):
        lengths = generator.integers(
            1, generator.integers(2, longest + 2), generator.integers(1, most + 1)
        )
        batches = length_batches(lengths.tolist(), tokens, longest, FIXED_SHAPES)
        found |= {(rows, width) for _, rows, width in batches}
    assert found == known
