"""The backend's kernel: where there is one, it gives what equation 1 gives."""

import keras
import pytest
from keras import ops
from masked_attention import Problem

from keras_transformer.layers.fused_attention import fused_attention

ON_PYTORCH = keras.backend.backend() == "torch"


def attend(query, key, value, **masks):
    """The kernel, or equation 1 in its place where this machine has none."""
    heads = fused_attention(query, key, value, **masks)
    assert (heads is not None) == ON_PYTORCH  # Tests see no accelerator.
    if heads is not None:
        return heads
    masks = {"mask": masks["padding_mask"], "is_causal": masks["use_causal_mask"]}
    if masks["mask"] is not None:
        masks["mask"] = masks["mask"][:, None, None, :]
    heads = (ops.swapaxes(x, 1, 2) for x in (query, key, value))
    return ops.swapaxes(ops.dot_product_attention(*heads, **masks), 1, 2)


@pytest.mark.parametrize("is_causal, padding", [(True, 0), (False, 3)])
def test_heads_and_gradients_are_those_of_all_scores(is_causal, padding):
    Problem(11, 11, is_causal=is_causal, padding=padding).assert_solved_by(attend)


def test_two_masks_at_once_are_left_to_others():
    problem = Problem(5, 5, is_causal=True, padding=2)
    assert fused_attention(*problem.inputs, **problem.options()) is None
