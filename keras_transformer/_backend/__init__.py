"""Contains all code that differs by backend."""
