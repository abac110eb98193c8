"""Settings of the process: freed memory is kept, TensorFlow is not loaded needlessly."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

# Parameters of mallopt, and their values.
_MALLOC_SETTINGS = {
    -4: 0,  # M_MMAP_MAX: allocate large buffers on the heap too
    -1: -1,  # M_TRIM_THRESHOLD: never shrink the heap
    -2: 2**28,  # M_TOP_PAD: grow the heap by at least 256 MiB
    -8: 1,  # M_ARENA_MAX: new threads share the heap
}


def keep_freed_memory() -> bool:
    """Makes glibc keep the memory that this process frees, instead of returning it to the system.

    A training step on a CPU frees gigabytes for a large model, and the next step allocates as much.
    If glibc returns them, the system fills each page with zeros before it hands it out again. That
    takes a sixth of a training step of the paper's base model on JAX, a third or more on PyTorch.
    With this setting it takes no time, and the process stays as large as its peak. Call it before
    the first training step; `train` does so.

    Example:

    ```python
    keep_freed_memory()
    trainer.fit(batches)
    ```

    Returns:
        Whether the setting was made: False if the C library is not glibc.

    Source: mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(name, value) for name, value in _MALLOC_SETTINGS.items()])


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Context in which Keras cannot import TensorFlow, unless it is the backend or is loaded.

    When Keras saves a model or sets the random seed, it imports TensorFlow to find out whether it
    is installed. That takes seconds and hundreds of megabytes. Here the import fails, as if
    TensorFlow were not installed, and Keras remembers the answer.
    """
    modules: dict[str, Any] = sys.modules
    if keras.config.backend() == "tensorflow" or "tensorflow" in modules:
        yield
        return
    modules["tensorflow"] = None
    try:
        yield
    finally:
        del modules["tensorflow"]
