"""Masks are boolean; True = may attend."""

import numpy as np
from support.contract import to_numpy

from keras_transformer.layers import causal_mask, padding_mask


def test_padding_mask_marks_real_tokens():
    mask = to_numpy(padding_mask(np.array([[5, 6, 0], [7, 0, 0]])))
    np.testing.assert_array_equal(mask, [[True, True, False], [True, False, False]])
    assert mask.dtype == bool


def test_any_id_can_be_padding():
    mask = to_numpy(padding_mask(np.array([[0, 9]]), pad_id=9))
    np.testing.assert_array_equal(mask, [[True, False]])


def test_causal_mask_shows_oneself_and_the_past():
    mask = to_numpy(causal_mask(3))
    np.testing.assert_array_equal(
        mask, [[[True, False, False], [True, True, False], [True, True, True]]]
    )
    assert mask.dtype == bool
