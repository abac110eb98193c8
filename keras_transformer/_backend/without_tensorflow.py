"""Keeping TensorFlow out of processes that compute with JAX or PyTorch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Keep Keras from loading TensorFlow where another backend computes.

    To find out whether TensorFlow is installed, Keras imports it, which takes seconds and
    hundreds of megabytes: whenever it saves a model or sets the random seed. Inside this context
    the import fails, as if TensorFlow were not installed; Keras remembers that. Nothing happens
    if TensorFlow is the backend or has been imported before.

    Example:

    ```python
    with without_tensorflow():
        model.save("model.keras")
    ```
    """
    modules: dict[str, Any] = sys.modules
    if keras.config.backend() == "tensorflow" or "tensorflow" in modules:
        yield
        return
    modules["tensorflow"] = None
    try:
        yield
    finally:
        del modules["tensorflow"]
