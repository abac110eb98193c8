"""Creates weights of zeros instead of random weights where loading a model replaces them anyway."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

_IS_LOADING = ContextVar("_IS_LOADING", default=False)
_CREATES_PLACEHOLDERS = ContextVar("_CREATES_PLACEHOLDERS", default=False)


@contextmanager
def placeholder_weights() -> Iterator[None]:
    """Makes models of the package begin with zeros instead of random weights within this context.

    The weights must be loaded or set afterwards. On JAX, random weights would take longer, because
    JAX compiles a program for each shape. Layers in other models keep their random weights, because
    a layer of a user may compute with weights that it does not save.
    """
    token = _IS_LOADING.set(True)
    try:
        yield
    finally:
        _IS_LOADING.reset(token)


@contextmanager
def making_model_of_package() -> Iterator[None]:
    """Makes layers create placeholders within this context if it is within the other one."""
    token = _CREATES_PLACEHOLDERS.set(_IS_LOADING.get())
    try:
        yield
    finally:
        _CREATES_PLACEHOLDERS.reset(token)


class CreatesPlaceholders:
    """Mixin of layers that obey `placeholder_weights`, except users' subclasses of them.

    A subclass may have random weights that it does not save.
    """

    def add_weight(
        self, shape: Any = None, initializer: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Creates a weight (see `keras.layers.Layer.add_weight`)."""
        is_loaded = type(self).__module__.startswith("keras_transformer.")
        is_random = hasattr(keras.initializers.get(initializer), "seed")
        if is_loaded and is_random and _CREATES_PLACEHOLDERS.get():
            initializer = "zeros"
        return super().add_weight(shape, initializer, *args, **kwargs)  # type: ignore
