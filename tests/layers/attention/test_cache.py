"""What search does with a cache; test_decoding_step.py has how keys and values are kept."""

import numpy as np
from keras import ops
from support.contract import to_numpy

from keras_transformer.layers.attention.cache import Cache, CacheSize, take_slots

N, H = 3, 2


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


def test_the_mask_follows_hypotheses_that_changed_places():
    slots, _ = take_slots(CacheSize(1, 2, 3).slots(), 0)
    slots, mask = take_slots(ops.flip(slots, axis=1), 1)
    # Slots of the first position, then of the second; the third is empty.
    assert to_numpy(mask)[0, 0].astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
