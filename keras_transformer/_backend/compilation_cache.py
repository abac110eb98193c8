"""Keeps JAX's compiled programs on disk, so that the next process need not compile them again."""

import hashlib
import os
import platform
import time
from pathlib import Path

import keras

# Largest size of the cache. JAX then deletes the programs that were not used for longest. JAX looks
# at all programs when it writes one; with 6,000 small programs, a write takes 0.3 s.
MAX_BYTES = 2**27


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in `keras_transformer/jax` in the user's cache folder.

    On other backends, the function does nothing.

    The user's cache folder is `XDG_CACHE_HOME` or `~/.cache`. Each type of processor has its own
    subfolder, because a program for one processor may crash on another. If the process cannot write
    to the folder, the cache stays off. The function changes nothing if a setting of JAX names a
    cache folder (`JAX_COMPILATION_CACHE_DIR`) or turns the cache off
    (`JAX_ENABLE_COMPILATION_CACHE=false`).
    """
    if keras.config.backend() != "jax":
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        folder = _cache_home() / "keras_transformer" / "jax" / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_unfinished(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    config.update("jax_compilation_cache_max_size", MAX_BYTES)
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # JAX looks for the folder only before it first compiles.


def _remove_unfinished(folder: Path) -> None:
    """Removes programs without a time stamp. One such program keeps JAX from writing others."""
    for program in folder.glob("*-cache"):
        stamp = program.with_name(program.name.removesuffix("-cache") + "-atime")
        # Another process may be writing the stamp of a program that is less than a minute old.
        if not stamp.exists() and time.time() - program.stat().st_mtime > 60:
            program.unlink()


def _cache_home() -> Path:
    """Returns `XDG_CACHE_HOME` if it is an absolute path (XDG standard), otherwise `~/.cache`."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return folder if folder.is_absolute() else Path.home() / ".cache"


def _processor() -> str:
    """Returns a hash of the processor's model name and features, as a hexadecimal string."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    parts = platform.machine(), platform.processor(), *sorted(set(features))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
