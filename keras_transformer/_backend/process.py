"""Prevents Keras from importing TensorFlow on other backends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Prevents Keras from importing TensorFlow within this context.

    The context has no effect if TensorFlow is the backend or is already imported. When Keras saves
    a model or sets the random seed, it imports TensorFlow to find out whether TensorFlow is
    installed. The import takes seconds and hundreds of megabytes of memory. In this context, Keras
    takes TensorFlow for not installed.
    """
    from keras.src.utils.module_utils import tensorflow

    if keras.config.backend() == "tensorflow" or "tensorflow" in sys.modules:
        yield
        return
    before = tensorflow._available
    tensorflow._available = False
    try:
        yield
    finally:
        tensorflow._available = before
