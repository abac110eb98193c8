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
    JAX compiles a program for each shape. Other models, also users' subclasses of the package's
    models, keep their random weights, because they may compute with weights that they do not save.
    """
    token = _IS_LOADING.set(True)
    try:
        yield
    finally:
        _IS_LOADING.reset(token)


@contextmanager
def making_model(model_class: type) -> Iterator[None]:
    """Makes layers create zeros within this context, if a model of the package is being loaded."""
    is_ours = model_class.__module__.startswith("keras_transformer.")
    token = _CREATES_PLACEHOLDERS.set(is_ours and _IS_LOADING.get())
    try:
        yield
    finally:
        _CREATES_PLACEHOLDERS.reset(token)


class CreatesPlaceholders:
    """Mixin of layers that obey `placeholder_weights`."""

    def add_weight(
        self, shape: Any = None, initializer: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Creates a weight (see `keras.layers.Layer.add_weight`)."""
        # Random initializers alone have a seed.
        if _CREATES_PLACEHOLDERS.get() and hasattr(keras.initializers.get(initializer), "seed"):
            initializer = "zeros"
        return super().add_weight(shape, initializer, *args, **kwargs)  # type: ignore
