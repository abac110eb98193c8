"""The program that a module tests, by the name of the module."""

import json
import runpy
import sys
from pathlib import Path

import keras
import pytest


@pytest.fixture(scope="module")
def recipe(request):
    """The names that the program defines."""
    name = request.module.__name__.rpartition("test_")[2]
    return runpy.run_path(str(Path(__file__).parents[2] / "recipes" / f"{name}.py"))


@pytest.fixture
def run_recipe(recipe, tmp_path, monkeypatch):
    """Runs the program on `data` with options, and returns the results that it wrote to `run`."""

    def run(options):
        folders = ["--data-dir", str(tmp_path / "data"), "--output", str(tmp_path / "run")]
        monkeypatch.setattr(sys, "argv", ["recipe.py", *folders, *options.split()])
        policy = keras.config.dtype_policy()
        try:
            recipe["main"]()
        finally:
            keras.config.set_dtype_policy(policy)
        return json.loads((tmp_path / "run" / "results.json").read_text())

    return run
