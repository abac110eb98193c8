"""Positions as a penalty on the scores, linear in the distance."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.positions.positional_encoding import (
    PositionalEncoding,
    position_encoding,
)


@position_encoding("alibi")
@keras.saving.register_keras_serializable(package="keras_transformer")
class ALiBiPositionalEncoding(PositionalEncoding):
    """Attention with linear biases: each head lowers its scores in proportion to the distance.

    The bias of head h is -m_h |i - j| for query i and key j. If H is a power of two, the slopes m
    are 2^(-8 / H), 2^(-16 / H), ..., 2^-8. Otherwise they are those of the power of two below H,
    and every second slope of the power above. Nothing is learned, and there is no maximum length.
    The publication is about causal attention. In an encoder the bias is symmetric: it depends on
    the distance but not on the order, so an encoder cannot tell a sentence from its reverse.

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

    def score_bias(self, distance: Any) -> Any:
        slopes = ops.convert_to_tensor(_slopes(self.num_heads), "float32")
        slopes = ops.reshape(slopes, (-1, *(1 for _ in distance.shape)))
        return -slopes * ops.cast(ops.abs(distance), "float32")


def _slopes(num_heads: int) -> np.ndarray:
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    if power == num_heads:
        return slopes
    return np.concatenate([slopes, _slopes(2 * power)[::2][: num_heads - power]])
