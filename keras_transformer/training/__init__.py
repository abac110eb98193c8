"""Schedule, loss, metrics and optimizer; checkpoints; training by a recipe."""

from keras_transformer._backend.freed_memory import keep_freed_memory
from keras_transformer.training.averaging import average_checkpoints
from keras_transformer.training.checkpoint import load_checkpoint, save_checkpoint
from keras_transformer.training.masked_accuracy import MaskedAccuracy
from keras_transformer.training.masked_crossentropy import MaskedCrossentropy
from keras_transformer.training.perplexity import Perplexity
from keras_transformer.training.tensorboard import TensorBoardWriter
from keras_transformer.training.train import train
from keras_transformer.training.transformer_adam import TransformerAdam
from keras_transformer.training.transformer_schedule import TransformerSchedule
from keras_transformer.training.transformer_trainer import TransformerTrainer

__all__ = [
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Perplexity",
    "TensorBoardWriter",
    "TransformerAdam",
    "TransformerSchedule",
    "TransformerTrainer",
    "average_checkpoints",
    "keep_freed_memory",
    "load_checkpoint",
    "save_checkpoint",
    "train",
]
