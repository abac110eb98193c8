"""Contains code that differs by backend."""

import importlib.util
import os

BACKENDS = ("tensorflow", "jax", "torch")


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def use_only_backend() -> None:
    """Sets KERAS_BACKEND to the only installed backend, if KERAS_BACKEND is not set."""
    if not os.environ.get("KERAS_BACKEND") and len(installed := installed_backends()) == 1:
        os.environ["KERAS_BACKEND"] = installed[0]
