"""Checks that a model gives the same results on all backends."""

from keras_transformer.portability.comparison import Conformance, conformance
from keras_transformer.portability.inputs import load_inputs

__all__ = ["Conformance", "conformance", "load_inputs"]
