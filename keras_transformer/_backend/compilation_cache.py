"""Keeps JAX's compiled programs on disk, so that the next process need not compile them again."""

import hashlib
import os
import platform
from pathlib import Path

import keras

# Largest size of the cache. JAX then deletes the programs that were not used for longest.
MAX_BYTES = 2**30


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in `keras_transformer/jax` in the user's cache folder.

    On other backends, the function does nothing.

    The folder is `XDG_CACHE_HOME` or `~/.cache`. Processors with other features have a folder of
    their own, because programs for one may crash on another. If the folder cannot be written, the
    cache stays off. The function changes nothing if JAX's own setting names a folder
    (`JAX_COMPILATION_CACHE_DIR`) or turns the cache off (`JAX_ENABLE_COMPILATION_CACHE=false`).
    """
    if keras.config.backend() != "jax":
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    folder = _cache_home() / "keras_transformer" / "jax" / _processor()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    config.update("jax_compilation_cache_max_size", MAX_BYTES)
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # JAX looks for the folder only before it first compiles.


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """Returns a name for the processor that differs if its features differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    parts = platform.machine(), platform.processor(), *sorted(set(features))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
