"""Which calls of attention layers are recorded, and as what."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from keras import ops

from keras_transformer.layers import (
    LocalAttention,
    MultiHeadAttention,
    SelfAttention,
)
from keras_transformer.layers.attention.scaled_dot_product_attention import recorded_attention

B, T, S, D = 2, 5, 7, 6
X, MEMORY = ops.ones((B, T, D)), ops.ones((B, S, D))


@pytest.mark.parametrize(
    "layer, arguments, kind, shape",
    [
        (MultiHeadAttention(D, 3), {"query": X}, "encoder", (B, 3, T, T)),
        (MultiHeadAttention(D, 3), {"query": X, "key": X}, "encoder", (B, 3, T, T)),
        (MultiHeadAttention(D, 3), {"query": X, "key": MEMORY}, "cross", (B, 3, T, S)),
        (SelfAttention(4), {"x": X, "use_causal_mask": True}, "decoder", (B, T, T)),
    ],
)
def test_a_call_is_recorded_with_its_kind(layer, arguments, kind, shape):
    with recorded_attention() as records:
        layer(**arguments)
    assert [(x.layer, x.kind, tuple(x.weights.shape)) for x in records] == [(layer, kind, shape)]


def test_only_calls_of_this_thread_are_recorded():
    layer = MultiHeadAttention(D, 3, attention_pattern=LocalAttention(2))
    layer(X)
    with recorded_attention() as records, ThreadPoolExecutor(1) as pool:
        pool.submit(layer, X).result()
        assert records == []
        layer(X)
    layer(X)
    assert len(records) == 1
