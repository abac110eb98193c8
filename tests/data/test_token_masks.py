"""Masks for masked language models."""

import numpy as np
import pytest

from keras_transformer.data import mask_tokens

V, MASK_ID, SPECIAL = 50, 49, (0, 1, 2, 3)


def rows(count, length, padding=0):
    """Rows `[bos, ordinary ids..., eos, pad...]`, with unk and a mask token among the ids."""
    ids = np.random.default_rng(0).integers(4, MASK_ID, (count, length)).astype("int32")
    ids[:, 0], ids[:, 2], ids[:, 3], ids[:, length - padding - 1] = 2, 1, MASK_ID, 3
    ids[:, length - padding :] = 0
    return ids


def test_only_ordinary_tokens_are_chosen_and_only_chosen_tokens_change():
    ids = rows(200, 41, padding=10)
    inputs, labels = mask_tokens(ids, np.random.default_rng(0), V, MASK_ID)
    positions, masked = inputs["masked_positions"], inputs["token_ids"]
    assert labels.shape == positions.shape == (200, 6)  # round(0.15 * 41)
    assert {x.dtype for x in (positions, masked, labels)} == {np.dtype("int32")}
    for row, row_masked, row_positions, row_labels in zip(
        ids, masked, positions, labels, strict=True
    ):
        count = 4  # round(0.15 * 27): 41 tokens without 10 pad, bos, eos, unk and mask
        assert len(set(row_positions[:count])) == count
        np.testing.assert_array_equal(row_labels[:count], row[row_positions[:count]])
        assert not set(row_labels[:count]) & {*SPECIAL, MASK_ID}
        assert list(row_labels[count:]) == list(row_positions[count:]) == [0, 0]
        unchanged = np.delete(np.arange(len(row)), row_positions[:count])
        np.testing.assert_array_equal(row_masked[unchanged], row[unchanged])


def test_eight_tenths_are_masked_one_tenth_random_and_one_tenth_kept():
    ids = np.full((1_000, 100), 7, "int32")
    inputs, labels = mask_tokens(ids, np.random.default_rng(0), V, MASK_ID)
    found = np.take_along_axis(inputs["token_ids"], inputs["masked_positions"], axis=1)
    assert (labels == 7).all() and labels.size == 15_000
    others = found[(found != MASK_ID) & (found != 7)]
    # Random tokens are one of 45 ids, so 1 / 45 of them are 7. Limits: 4 standard deviations.
    for share, expected in (
        (np.mean(found == MASK_ID), 0.8),
        (len(others) / 15_000, 0.1 * 44 / 45),
    ):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 15_000)
    assert set(others) == set(range(4, MASK_ID)) - {7}
    counts = np.bincount(inputs["masked_positions"].ravel(), minlength=100)
    assert abs(counts - 150).max() < 4.5 * np.sqrt(150)  # every position is as likely


@pytest.mark.parametrize(
    ("ids", "mask_id", "message"),
    [
        ([[5.5]], MASK_ID, "`token_ids` must be integers from 0 to 49. Received: values"),
        ([[5, V]], MASK_ID, "`token_ids` must be integers from 0 to 49. Received: values"),
        ([[5]], V, "`mask_id` must be integers from 0 to 49"),
    ],
)
def test_wrong_arguments_are_refused(ids, mask_id, message):
    with pytest.raises(ValueError, match=message):
        mask_tokens(ids, np.random.default_rng(0), V, mask_id)
    with pytest.raises(ValueError, match="Received: rate=0"):
        mask_tokens([[5]], np.random.default_rng(0), V, MASK_ID, rate=0)
