"""The functional models, and what search and training need of a model."""

from keras_transformer.architectures import ARCHITECTURES, register_architecture
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models.base import ConfiguredModel, merge_lora
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import BertEncoder, MaskedLanguageModel
from keras_transformer.models.protocol import Searchable, SlicesLogits
from keras_transformer.models.seq2seq import Seq2Seq, ids_inputs, token_embeddings
from keras_transformer.models.transformer import Transformer

__all__ = [
    "ARCHITECTURES",
    "BertEncoder",
    "Cache",
    "ConfiguredModel",
    "LanguageModel",
    "MaskedLanguageModel",
    "Searchable",
    "Seq2Seq",
    "SlicesLogits",
    "Transformer",
    "ids_inputs",
    "merge_lora",
    "register_architecture",
    "token_embeddings",
]
