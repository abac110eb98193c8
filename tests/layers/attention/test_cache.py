"""What search does with a cache, and the two ways to keep keys and values."""

import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy

from keras_transformer.layers.attention.cache import (
    Cache,
    CacheSize,
    extended,
    take_slots,
)

B, N, H, K, K_V = 2, 3, 2, 5, 7


def test_reordering_moves_hypotheses_and_nothing_else():
    beam = np.arange(B * N * 2).reshape(B, N, 2)
    cache = Cache({"state": ops.convert_to_tensor(beam)}, ops.arange(B), "shared")
    moved = cache.reorder(ops.convert_to_tensor([[2, 0, 0], [1, 1, 2]], "int32"))
    expected = [beam[0, [2, 0, 0]], beam[1, [1, 1, 2]]]
    np.testing.assert_array_equal(to_numpy(moved.beam["state"]), expected)
    assert moved.sentence is cache.sentence and moved.shared == "shared"


def test_sentences_are_taken_with_all_their_rows():
    """Leaves of the sentences may have one row, or one per head."""
    heads = np.arange(4 * H * 3).reshape(4 * H, 3)
    sentence = {"memory": ops.arange(4), "keys": [ops.convert_to_tensor(heads)]}
    cache = Cache(ops.reshape(ops.arange(4 * N), (4, N)), sentence, "shared")
    taken = cache.take_sentences(ops.convert_to_tensor([3, 1], "int32"), 4)
    assert to_numpy(taken.beam).tolist() == [[9, 10, 11], [3, 4, 5]]
    assert to_numpy(taken.sentence["memory"]).tolist() == [3, 1]
    np.testing.assert_array_equal(to_numpy(taken.sentence["keys"][0]), heads[[6, 7, 2, 3]])
    assert taken.shared == "shared"


@pytest.mark.parametrize("max_length", [1, None], ids=["fixed", "growing"])
def test_keys_and_values_are_in_the_slots_that_they_were_written_to(max_length):
    """Two positions, in a cache that is extended between them."""
    generator = np.random.default_rng(0)
    keys, values = (generator.normal(size=(2, B * H, N, d)).astype("float32") for d in (K, K_V))
    cache = CacheSize(B, N, max_length).empty_cache(H, K, K_V, "float32").sentence
    for position in range(2):
        if position == 1:
            (cache, *others), rest = extended([(cache, keys), ()], N)
            assert others[0] is keys and rest == ()
        new = (ops.convert_to_tensor(x[position]) for x in (keys, values))
        cache = cache.write(*new, position * N)
    key = to_numpy(cache.key)
    key = np.swapaxes(key, -1, -2) if max_length else key
    np.testing.assert_array_equal(key, np.concatenate(keys, axis=1))
    np.testing.assert_array_equal(to_numpy(cache.value), np.concatenate(values, axis=1))


def test_the_mask_follows_hypotheses_that_changed_places():
    slots, _ = take_slots(CacheSize(1, 2, 3).slots(), 0)
    slots, mask = take_slots(ops.flip(slots, axis=1), 1)
    # Slots of the first position, then of the second; the third is empty.
    assert to_numpy(mask)[0, 0].astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
