"""Checks that a model gives the same results on all backends."""

from keras_transformer.portability.comparison import Conformance, conformance

__all__ = ["Conformance", "conformance"]
