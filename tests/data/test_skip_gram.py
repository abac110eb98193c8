"""The pairs of the skip-gram model: window, subsampling, negative samples, resuming."""

import numpy as np
import pytest

from keras_transformer import skip_gram_batches


def pairs_of(stream, batches):
    """Returns the (center, neighbor) pairs of some batches, without negative samples."""
    found = [next(stream)[0] for _ in range(batches)]
    centers = np.concatenate([inputs["centers"] for inputs in found])
    return np.stack([centers, np.concatenate([x["contexts"][:, 0] for x in found])], axis=1)


def test_pairs_are_neighbors_in_a_sentence_and_near_ones_are_more_frequent():
    sentences = [np.arange(10), np.arange(10, 20)]
    batches = skip_gram_batches(sentences, 20, batch_size=50, window=4, subsampling=1.0)
    pairs = pairs_of(batches(0), 100)
    distances = abs(pairs[:, 0] - pairs[:, 1])
    assert set(distances) == {1, 2, 3, 4}
    assert (pairs[:, 0] // 10 == pairs[:, 1] // 10).all()
    # The radius is 1, 2, 3 or 4. Of 20 words, 18, 16, 14 and 12 have a right neighbor at distance
    # 1, 2, 3 and 4.
    expected = np.array([4 * 18, 3 * 16, 2 * 14, 1 * 12])
    found = np.bincount(distances)[1:] / len(pairs)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.02)


def test_frequent_words_are_removed_with_the_probability_of_the_paper():
    # Word 1 has 0.8 of the text and stays with sqrt(0.2 / 0.8) = 1/2. Word 2 stays.
    sentences = [[1, 1, 1, 1, 2]] * 2_000
    batches = skip_gram_batches(sentences, 3, batch_size=1_000, window=1, subsampling=0.2)
    centers = pairs_of(batches(0), 3)[:, 0]
    # Of the left neighbors of a 2, all are 1. A sentence keeps 0 to 4 of its ones: the expected
    # number of pairs (1, 2) is 1 - 1/16, and of pairs (1, 1) it is 2 - 1 + 1/16.
    one_two, one_one = 1 - 1 / 16, 2 - 1 + 1 / 16
    share = one_two / (2 * one_two + 2 * one_one)
    np.testing.assert_allclose((centers == 2).mean(), share, atol=0.03)


def test_negative_samples_follow_the_counts_to_the_power_of_three_quarters():
    sentences = [[0] * 16 + [2]] * 50
    inputs, labels = next(skip_gram_batches(sentences, 4, 500, negatives=20, subsampling=1.0)(0))
    assert inputs["contexts"].shape == labels.shape == (500, 21)
    np.testing.assert_array_equal(labels[3], [1] + [0] * 20)
    shares = np.bincount(inputs["contexts"][:, 1:].ravel(), minlength=4) / 10_000
    np.testing.assert_allclose(shares, [8 / 9, 0, 1 / 9, 0], atol=0.01)  # 16^0.75 = 8


def test_skipped_batches_are_those_of_an_uninterrupted_stream():
    sentences = [np.random.default_rng(i).integers(0, 30, 8) for i in range(20)]
    batches = skip_gram_batches(sentences, 30, batch_size=64, subsampling=1.0, seed=5)
    whole, resumed = batches(0), batches(17)
    for _ in range(17):  # a pass has at most 17: 160 centers with at most 7 neighbors
        next(whole)
    for _ in range(9):
        (inputs, labels), (expected, expected_labels) = next(resumed), next(whole)
        np.testing.assert_array_equal(inputs["centers"], expected["centers"])
        np.testing.assert_array_equal(inputs["contexts"], expected["contexts"])
        np.testing.assert_array_equal(labels, expected_labels)


def test_too_few_pairs_for_a_batch_are_refused():
    with pytest.raises(ValueError, match="batch_size=64, pairs="):
        next(skip_gram_batches([[1, 2, 3]], 4, batch_size=64)(0))


def test_ids_and_sizes_out_of_range_are_refused():
    with pytest.raises(
        ValueError, match="`sentences` must be from 0 to 8. Received: values from 0 to 9"
    ):
        skip_gram_batches([[0, 9]], 9, batch_size=1)
    with pytest.raises(ValueError, match="Received: values from 4294967299 to 4294967299"):
        skip_gram_batches(np.array([[2**32 + 3]], "uint64"), 9, batch_size=1)
    with pytest.raises(ValueError, match="`window` must be an integer of at least 1"):
        skip_gram_batches([[0, 1]], 9, batch_size=1, window=0)
    with pytest.raises(
        ValueError, match="`subsampling` must be above 0. Received: subsampling=nan"
    ):
        skip_gram_batches([[0, 1]], 9, batch_size=1, subsampling=float("nan"))
    with pytest.raises(ValueError, match="`sentences` must be integers. Received: dtype=float64"):
        skip_gram_batches([[0, 1], [1.5]], 9, batch_size=1)


def test_an_array_is_a_list_of_sentences_and_a_sentence_may_be_empty():
    arguments = {"vocabulary_size": 4, "batch_size": 2, "subsampling": 1.0}
    inputs, _ = next(skip_gram_batches(np.array([[1, 2], [3, 0]]), **arguments)(0))
    expected, _ = next(skip_gram_batches([[1, 2], [3, 0], []], **arguments)(0))
    np.testing.assert_array_equal(inputs["centers"], expected["centers"])
