"""Masks and positions of rows that hold several texts (packing).

`segments`, int `(B, T)`, has the number of the text of each token. None: a row is one text.
"""

from typing import Any

from keras import ops

from keras_transformer._backend.types import Ids


def same_segment(queries: Ids | None, keys: Ids | None) -> Any:
    """Returns a mask, bool `(B, T, S)`, True where query and key are of the same text, or None."""
    if queries is None or keys is None:
        return None
    return ops.equal(ops.expand_dims(queries, 2), ops.expand_dims(keys, 1))


def segment_offsets(segments: Ids | None) -> Any:
    """Returns position minus place of each token, int32 `(B, T)`: `offset` of an encoding."""
    if segments is None:
        return 0
    length = ops.shape(segments)[1]
    places = ops.arange(length, dtype="int32")
    return -ops.min(ops.where(same_segment(segments, segments), places, length), axis=2)
