"""Training on several devices and in several processes; no other code knows of replicas."""

from keras_transformer.training.distribution.distribution import Distribution, start

__all__ = ["Distribution", "start"]
