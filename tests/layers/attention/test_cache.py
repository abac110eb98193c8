"""What search does with a cache; test_decoding_step.py has how keys and values are kept."""

from keras import ops
from support.contract import to_numpy

from keras_transformer.layers.attention.cache import CacheSize, take_slots


def test_the_mask_follows_hypotheses_that_changed_places():
    slots, _ = take_slots(CacheSize(1, 2, 3).slots(), 0)
    slots, mask = take_slots(ops.flip(slots, axis=1), 1)
    # Slots of the first position, then of the second; the third is empty.
    assert to_numpy(mask)[0, 0].astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
