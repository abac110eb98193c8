"""Contains code that differs by backend."""

import importlib.util

BACKENDS = ("tensorflow", "jax", "torch")


def installed_backends() -> list[str]:
    """Returns the names of the installed backends."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
