"""Fixtures of this folder."""

from support.exporting import exporting_fixture  # noqa: F401
