"""Trains on several devices and in several processes."""

from keras_transformer.training.distribution.distribution import Distribution
from keras_transformer.training.distribution.start import start

__all__ = ["Distribution", "start"]
