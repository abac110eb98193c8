"""The functional models, and what search and training need of a model."""

from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models.attentional_recurrent import AttentionalRecurrentSeq2Seq
from keras_transformer.models.base import ConfiguredModel
from keras_transformer.models.convolutional import ConvolutionalSeq2Seq
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import BertEncoder, MaskedLanguageModel
from keras_transformer.models.protocol import Searchable, SlicesLogits
from keras_transformer.models.recurrent import RecurrentSeq2Seq
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer

__all__ = [
    "ARCHITECTURES",
    "AttentionalRecurrentSeq2Seq",
    "BertEncoder",
    "Cache",
    "ConfiguredModel",
    "ConvolutionalSeq2Seq",
    "LanguageModel",
    "MaskedLanguageModel",
    "RecurrentSeq2Seq",
    "Searchable",
    "Seq2Seq",
    "SlicesLogits",
    "Transformer",
]

# The classes that a recipe can name as `model.architecture`.
ARCHITECTURES: dict[str, type[Seq2Seq]] = {
    model_class.architecture: model_class
    for model_class in (
        Transformer,
        RecurrentSeq2Seq,
        AttentionalRecurrentSeq2Seq,
        ConvolutionalSeq2Seq,
    )
}
