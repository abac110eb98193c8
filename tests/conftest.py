"""Fixtures and settings shared by all tests."""

import os

# Before Keras loads its backend: one quiet, CPU-only process that does not fight for cores.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from pathlib import Path

import keras
import pytest


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Same random numbers in every test, whichever tests ran before it."""
    keras.utils.set_random_seed(20170612)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets; tests that need it skip without it."""
    folder = os.environ.get("KERAS_TRANSFORMER_DATA")
    if not folder:
        pytest.skip("KERAS_TRANSFORMER_DATA names no folder with the real data sets")
    return Path(folder)
