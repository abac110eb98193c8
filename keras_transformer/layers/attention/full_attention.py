"""All to all, without all scores in memory."""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_transformer._backend.fused_attention import fused_attention
from keras_transformer.layers.attention.attention_pattern import AttentionPattern
from keras_transformer.layers.attention.blockwise_attention import blockwise_attention


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Every position attends to every other, in memory linear in the length (§3.2.1).

    The result is that of `MultiHeadAttention` without a pattern. The backend's fused kernel
    computes it where there is one for the arguments, else `blockwise_attention`, which goes over
    blocks of the keys and, for gradients, over them once more. The time stays quadratic. On 2 cores
    blocks take less of it than all scores at once on JAX from about 4,000 tokens on, as much on
    TensorFlow, and PyTorch's kernel less at 2,000 already.

    Example:

    >>> MultiHeadAttention(d_model=512, num_heads=8, attention_pattern=FullAttention())

    Args:
        block_size: Keys of a block, at least 1. Defaults to 512.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory"; Dao et al. 2022,
    "FlashAttention".
    """

    block_size: int = 512

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        padding_mask: Any = None,
        use_causal_mask: bool = False,
        use_scale: bool = True,
        dropout: Any = None,
        training: bool = False,
    ) -> Any:
        drops = dropout is not None and dropout.rate > 0 and training
        if not drops:
            fused = fused_attention(query, key, value, padding_mask, use_causal_mask, use_scale)
            if fused is not None:
                return fused
        return blockwise_attention(
            query,
            key,
            value,
            padding_mask,
            use_causal_mask,
            use_scale,
            self.block_size,
            dropout.rate if drops else 0.0,
            dropout.seed_generator.next() if drops else None,
        )

    def allows(self, distance: Any) -> Any:
        return ops.ones_like(distance, dtype="bool")
