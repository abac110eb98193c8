"""The layers of the Transformer (Figure 1 of the paper), and variants of them."""

from keras_transformer._backend.gradient_checkpointing import checkpointable
from keras_transformer.layers.attention.attention_patterns import (
    AttentionPattern,
    FullAttention,
    LocalAttention,
)
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.attention.decoding_step import update_cache
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    SelfAttention,
    causal_mask,
    padding_mask,
    record_attention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import RMSNormalization
from keras_transformer.layers.positions.alibi import ALiBiPositionalEncoding
from keras_transformer.layers.positions.learned import LearnedPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import PositionalEncoding
from keras_transformer.layers.positions.rotary import RotaryPositionalEncoding
from keras_transformer.layers.positions.sinusoidal import SinusoidalPositionalEncoding
from keras_transformer.layers.positions.t5 import RelativePositionBias
from keras_transformer.layers.stacks.decoder import Decoder, DecoderLayer
from keras_transformer.layers.stacks.encoder import Encoder, EncoderLayer
from keras_transformer.layers.stacks.ssru_decoder import SSRU, SSRUDecoderLayer
from keras_transformer.layers.sublayers import FeedForward, GatedFeedForward, ResidualConnection
from keras_transformer.layers.token_embedding import TokenEmbedding

__all__ = [
    "ALiBiPositionalEncoding",
    "AttentionPattern",
    "Cache",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "FullAttention",
    "GatedFeedForward",
    "LearnedPositionalEncoding",
    "LocalAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "RMSNormalization",
    "RelativePositionBias",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "SSRU",
    "SSRUDecoderLayer",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "TokenEmbedding",
    "causal_mask",
    "checkpointable",
    "padding_mask",
    "record_attention",
    "scaled_dot_product_attention",
    "update_cache",
]
