"""The layers of the Transformer (Figure 1 of the paper), and variants of them."""

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_patterns import (
    AttentionPattern,
    FixedAttention,
    LocalAttention,
    StridedAttention,
)
from keras_transformer.layers.attention.attention_records import record_attention
from keras_transformer.layers.attention.attention_patterns import FullAttention
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    SelfAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions.alibi_positional_encoding import ALiBiPositionalEncoding
from keras_transformer.layers.positions.index_positional_encoding import (
    BinaryPositionalEncoding,
    IndexPositionalEncoding,
    NormalizedIndexPositionalEncoding,
)
from keras_transformer.layers.positions.learned_positional_encoding import LearnedPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.positions.relative_position_bias import RelativePositionBias
from keras_transformer.layers.positions.rotary_positional_encoding import RotaryPositionalEncoding
from keras_transformer.layers.positions.sinusoidal_positional_encoding import (
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.residual_connection import ResidualConnection
from keras_transformer.layers.token_embedding import TokenEmbedding

__all__ = [
    "ALiBiPositionalEncoding",
    "AttentionPattern",
    "BinaryPositionalEncoding",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "FixedAttention",
    "FullAttention",
    "IndexPositionalEncoding",
    "LearnedPositionalEncoding",
    "LocalAttention",
    "MultiHeadAttention",
    "NormalizedIndexPositionalEncoding",
    "PositionalEncoding",
    "RelativePositionBias",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "StridedAttention",
    "TokenEmbedding",
    "causal_mask",
    "checkpointable",
    "padding_mask",
    "record_attention",
    "scaled_dot_product_attention",
]
