"""The convolutional model has positions and a limited view."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.searching import eagerly, quick_search
from support.seq2seq_models import new_model, small_model
from support.small_models import inputs_of

from keras_transformer import SearchOptions


def test_decoding_does_not_outgrow_the_positions():
    model = small_model("convolutional")
    source_ids = inputs_of(model)["source_ids"]
    with pytest.raises(ValueError, match="must have at most `max_length` positions"):
        model.init_cache(source_ids, model.max_length + 1)


def test_the_encoder_sees_as_far_as_its_kernels():
    """Two layers of kernels of 3 tokens: two tokens to each side."""
    model = new_model("convolutional", kernel_size=3)
    source_ids = np.arange(4, 13, dtype="int32")[None]
    other = source_ids.copy()
    other[0, 4] = 1
    keys = [to_numpy(model.init_cache(ids, 2).sentence["key"])[0] for ids in (source_ids, other)]
    assert [int(i) for i in np.flatnonzero(np.abs(keys[0] - keys[1]).max(-1) > 1e-6)] == [
        *range(2, 7)
    ]


def test_the_cache_is_the_last_inputs_of_each_convolution():
    model = small_model("convolutional")
    cache = model.init_cache(inputs_of(model)["source_ids"], 4, beam_size=3)
    assert [part.shape[2:] for part in cache.beam] == [(model.kernel_size - 1, model.d_model)] * 3


def test_kernels_of_one_token_are_searched():
    model = new_model("convolutional", kernel_size=1)
    with eagerly():
        found = quick_search(model, inputs_of(model)["source_ids"], 4, SearchOptions(beam_size=3))
    assert np.isfinite(found.scores).all()
