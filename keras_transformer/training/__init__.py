"""Training: schedule, loss, metrics."""

from keras_transformer.training.masked_accuracy import MaskedAccuracy
from keras_transformer.training.masked_crossentropy import MaskedCrossentropy
from keras_transformer.training.perplexity import Perplexity
from keras_transformer.training.transformer_schedule import TransformerSchedule

__all__ = ["MaskedAccuracy", "MaskedCrossentropy", "Perplexity", "TransformerSchedule"]
