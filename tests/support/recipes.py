"""Toy data for the programs in recipes/."""

import gzip

import numpy as np


def write_fashion_mnist(folder, files, count=24):
    """Writes the four files: pictures and labels of training, pictures and labels of test."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for images, labels in (files[:2], files[2:]):
        pixels = generator.integers(0, 256, (count, 28, 28)).astype("uint8")
        (folder / images).write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
        values = generator.integers(0, 10, count).astype("uint8")
        (folder / labels).write_bytes(gzip.compress(bytes(8) + values.tobytes()))
