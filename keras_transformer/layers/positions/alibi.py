"""ALiBi, which lowers the scores of distant keys."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer._backend.types import Tensor
from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
)


@position_encoding("alibi")
class ALiBiPositionalEncoding(PositionalEncoding):
    """Lowers the scores of each head in proportion to the distance between query and key.

    For a query at position i and a key at position j, the bias of head h is -m_h |i - j|. If the
    number of heads H is a power of two, the slopes m_1, ..., m_H are 2^(-8/H), 2^(-16/H), ...,
    2^-8. Otherwise, let P be the largest power of two below H. The first P heads have the slopes of
    a layer with P heads, and the others the slopes m_1, m_3, m_5, ... of a layer with 2P heads. The
    ALiBi paper covers only causal attention: an encoder cannot distinguish a sentence from its
    reverse.

    Example:

    >>> alibi = ALiBiPositionalEncoding(num_heads=8)
    >>> attention = MultiHeadAttention(d_model=64, num_heads=8, position_encoding=alibi)

    Args:
        num_heads: Number of attention heads H.

    Source: Press, Smith and Lewis 2022, "Train Short, Test Long".
    """

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def score_bias(self, distance: Tensor) -> Any:
        slopes = ops.convert_to_tensor(_slopes(self.num_heads), "float32")
        slopes = ops.reshape(slopes, (-1, *(1 for _ in distance.shape)))
        return -slopes * ops.cast(ops.abs(distance), "float32")


def _slopes(num_heads: int) -> np.ndarray:
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    if power == num_heads:
        return slopes
    return np.concatenate([slopes, _slopes(2 * power)[::2][: num_heads - power]])
