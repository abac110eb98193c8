"""Provides the loss, metrics, optimizer, checkpoints, training loop, and training from recipes.

What a .keras file can contain is imported at once, the rest when it is first used.
"""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.models.crossentropy import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer.training.step.optimizer import TransformerAdam, TransformerSchedule
from keras_transformer.training.tensorboard import TensorBoardWriter, write_projector

if TYPE_CHECKING:
    from keras_transformer.training.checkpoint import (
        average_checkpoints,
        check_same_options,
        load_checkpoint,
        save_checkpoint,
    )
    from keras_transformer.training.devices.base import Distribution
    from keras_transformer.training.fit_loop import array_batches, fit
    from keras_transformer.training.run.train import train
    from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer

__all__ = [
    "Distribution",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Perplexity",
    "SlicedLogitsTrainer",
    "TensorBoardWriter",
    "TransformerAdam",
    "TransformerSchedule",
    "array_batches",
    "average_checkpoints",
    "check_same_options",
    "fit",
    "load_checkpoint",
    "save_checkpoint",
    "train",
    "write_projector",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checkpoint": "average_checkpoints check_same_options load_checkpoint save_checkpoint",
        "devices.base": "Distribution",
        "fit_loop": "array_batches fit",
        "sliced_logits_trainer": "SlicedLogitsTrainer",
        "run.train": "train",
    },
)
