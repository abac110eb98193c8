"""Functional models, one a file."""

from keras_transformer.models.transformer import Transformer

__all__ = ["Transformer"]
