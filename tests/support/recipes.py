"""Runs the programs in recipes/ on toy data."""

import gzip
import sys

import keras
import numpy as np


def run_recipe(main, options, monkeypatch):
    """Runs the function `main` of a recipe with options, and restores the dtype policy."""
    arguments = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["recipe.py", *arguments])
    policy = keras.config.dtype_policy()
    try:
        main()
    finally:
        keras.config.set_dtype_policy(policy)


def write_fashion_mnist(folder, files, count=24):
    """Writes the four files: pictures and labels of training, pictures and labels of test."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for images, labels in (files[:2], files[2:]):
        pixels = generator.integers(0, 256, (count, 28, 28)).astype("uint8")
        (folder / images).write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
        values = generator.integers(0, 10, count).astype("uint8")
        (folder / labels).write_bytes(gzip.compress(bytes(8) + values.tobytes()))
