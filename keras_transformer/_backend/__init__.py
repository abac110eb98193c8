"""Contains code that differs by backend."""

BACKENDS = ("tensorflow", "jax", "torch")
