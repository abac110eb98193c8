"""Contains code that differs by backend."""

import importlib.util
import os

BACKENDS = ("tensorflow", "jax", "torch")


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


# Before the package imports Keras: the only installed backend needs no KERAS_BACKEND.
if not os.environ.get("KERAS_BACKEND") and len(_installed := installed_backends()) == 1:
    os.environ["KERAS_BACKEND"] = _installed[0]
