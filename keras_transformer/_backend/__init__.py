"""Contains code that differs by backend."""
