"""Lets this process keep freed memory, and prevents Keras from importing TensorFlow."""

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

    On a CPU, each training step of a large model frees gigabytes, which the next step allocates
    again. If glibc returns this memory to the system, the system fills each page with zeros before
    the process can use it again. For the paper's base model, filling the pages takes a sixth of a
    training step on JAX, and a third or more on PyTorch. This function saves that time, but the
    process then keeps its peak memory until it ends. Call this function before the first training
    step. The function `train` calls `keep_freed_memory` itself.

    Example:

    ```python
    keep_freed_memory()
    trainer.fit(batches)
    ```

    Returns:
        True if the C library is glibc and accepted all settings, otherwise False.

    Source: mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(name, value) for name, value in _MALLOC_SETTINGS.items()])


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Prevents Keras from importing TensorFlow within this context.

    The context has no effect if TensorFlow is the backend or is already imported. When Keras saves
    a model or sets the random seed, it imports TensorFlow to find out whether TensorFlow is
    installed. The import takes seconds and hundreds of megabytes of memory. In this context, the
    import fails, and Keras remembers that TensorFlow is not installed.
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
