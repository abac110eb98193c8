"""Memory that stays with the process from one training step to the next."""

import ctypes
import platform

# Parameters of mallopt, and their values.
_SETTINGS = {
    -4: 0,  # M_MMAP_MAX: large buffers come from the heap too
    -1: -1,  # M_TRIM_THRESHOLD: its end is never returned
    -2: 2**28,  # M_TOP_PAD: it grows by 256 MiB at least
    -8: 1,  # M_ARENA_MAX: new threads share it
}


def keep_freed_memory() -> bool:
    """Keep what this process frees, where glibc would return it to the system.

    A training step on a CPU frees its buffers, gigabytes for a large model, and the next one needs
    the same. glibc returns buffers as large as these, and the system fills them with zeros, page
    by page, before it hands them out again: a sixth of a step of the paper's base model on JAX,
    a third or more on PyTorch. Kept, they cost nothing, and the process stays as large as it was
    at its peak. It can be called at any time, best before the first step, and `train` does.

    Example:

    ```python
    keep_freed_memory()
    trainer.fit(batches)
    ```

    Returns:
        Whether this process has such settings: False where its C library is not glibc.

    Source: mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(name, value) for name, value in _SETTINGS.items()])
