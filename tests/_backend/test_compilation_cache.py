"""JAX's compiled programs on disk."""

import functools
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest

from keras_transformer._backend.compilation_cache import use_compilation_cache

# Compiles one function; prints the numbers of programs that were found on disk, and the result.
SCRIPT = """
import json, sys
import keras, numpy as np
hits = []
if keras.config.backend() == "jax":
    import jax
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
    )
from keras_transformer import compile_function
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
compiled = compile_function(lambda m, x: m(keras.ops.convert_to_tensor(x)), model)
output = keras.ops.convert_to_numpy(compiled(np.ones((4, 3), "float32")))
folder = jax.config.jax_compilation_cache_dir if keras.config.backend() == "jax" else None
print(json.dumps([len(hits), output.tolist(), folder]))
"""


def run(cache, **environment):
    """Returns the number of programs found, the folder of the cache, and messages."""
    names = {"JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"}
    own = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**own, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    hits, output, folder = json.loads(done.stdout.splitlines()[-1])
    assert output == [[3.0, 3.0]] * 4
    return hits, folder, done.stderr


@pytest.fixture
def is_jax():
    return keras.config.backend() == "jax"


def test_the_next_process_finds_the_programs(tmp_path, is_jax):
    assert run(tmp_path)[0] == 0
    hits, folder, _ = run(tmp_path)
    assert (hits > 0) == is_jax
    (parent,) = tmp_path.glob("keras_transformer/jax/*") if is_jax else [None]
    assert folder == (str(parent) if is_jax else None)
    if is_jax:
        assert stat.S_IMODE(parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_broken_entry_is_compiled_again(tmp_path, is_jax):
    run(tmp_path)
    entries = list(tmp_path.glob("keras_transformer/jax/*/*-cache"))
    assert bool(entries) == is_jax
    for entry in entries:
        entry.write_bytes(b"broken" * 100)
    assert run(tmp_path)[0] == 0


@pytest.mark.slow
def test_an_entry_without_a_time_stamp_is_removed(tmp_path, is_jax):
    run(tmp_path)
    (folder,) = tmp_path.glob("keras_transformer/jax/*") if is_jax else [tmp_path]
    for name, age in (("old-cache", 3600), ("new-cache", 0)):
        (folder / name).write_bytes(b"unfinished")
        os.utime(folder / name, (time.time() - age,) * 2)
    run(tmp_path)
    assert (folder / "old-cache").exists() != is_jax
    assert (folder / "new-cache").exists()


@pytest.mark.slow
def test_without_an_absolute_folder_there_is_the_home_folder(tmp_path, is_jax):
    _, folder, _ = run("relative", HOME=str(tmp_path))
    assert folder is None or folder.startswith(str(tmp_path / ".cache"))
    assert (folder is not None) == is_jax
    assert not Path("relative").exists()


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch, request, is_jax):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    if is_jax:
        import jax

        for name, value in (("compilation_cache_dir", None), ("enable_compilation_cache", True)):
            before = getattr(jax.config, f"jax_{name}")
            request.addfinalizer(functools.partial(jax.config.update, f"jax_{name}", before))
            jax.config.update(f"jax_{name}", value)
    use_compilation_cache()
    assert not is_jax or jax.config.jax_compilation_cache_dir is None


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    hits, folder, messages = run(place)
    assert (hits, folder) == (0, None)
    assert "Error writing" not in messages


@pytest.mark.slow
def test_settings_of_the_user_stay(tmp_path, is_jax):
    own = tmp_path / "own"
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(own))[1] == (str(own) if is_jax else None)
    assert run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")[1] is None
    assert not (tmp_path / "keras_transformer").exists()
