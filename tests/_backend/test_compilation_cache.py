"""JAX's compiled programs on disk."""

import json
import os
import stat
import subprocess
import sys

import keras
import pytest

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


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    hits, folder, messages = run(place)
    assert (hits, folder) == (0, None)
    assert "Error writing" not in messages
