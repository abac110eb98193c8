"""The program that a module tests, by the name of the module."""

import runpy
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def recipe(request):
    """The names that the program defines."""
    name = request.module.__name__.rpartition("test_")[2]
    return runpy.run_path(str(Path(__file__).parents[2] / "recipes" / f"{name}.py"))
