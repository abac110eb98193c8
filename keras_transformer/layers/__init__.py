"""Figure 1 of the paper, one class a file."""

from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention_pattern import AttentionPattern
from keras_transformer.layers.binary_positional_encoding import BinaryPositionalEncoding
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.full_attention import FullAttention
from keras_transformer.layers.index_positional_encoding import IndexPositionalEncoding
from keras_transformer.layers.learned_positional_encoding import LearnedPositionalEncoding
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.layers.masks import causal_mask, padding_mask
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.normalized_index_positional_encoding import (
    NormalizedIndexPositionalEncoding,
)
from keras_transformer.layers.positional_encoding import PositionalEncoding
from keras_transformer.layers.residual_connection import ResidualConnection
from keras_transformer.layers.rotary_positional_encoding import RotaryPositionalEncoding
from keras_transformer.layers.scaled_dot_product_attention import scaled_dot_product_attention
from keras_transformer.layers.self_attention import SelfAttention
from keras_transformer.layers.sinusoidal_positional_encoding import SinusoidalPositionalEncoding
from keras_transformer.layers.strided_attention import StridedAttention
from keras_transformer.layers.token_embedding import TokenEmbedding

__all__ = [
    "AdditiveAttention",
    "AttentionPattern",
    "BinaryPositionalEncoding",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeedForward",
    "FullAttention",
    "IndexPositionalEncoding",
    "LearnedPositionalEncoding",
    "LocalAttention",
    "MultiHeadAttention",
    "NormalizedIndexPositionalEncoding",
    "PositionalEncoding",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "StridedAttention",
    "TokenEmbedding",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
]
