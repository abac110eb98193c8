"""Compiling a function of a model."""

import json
import stat

import keras
import numpy as np
import pytest
from keras import ops
from support.command_line import python
from support.contract import to_numpy

from keras_transformer import compile_function
from keras_transformer._backend.compile_function import makes_graphs


class Counted:
    """`inputs @ kernel`, which counts how often Python runs it."""

    def __init__(self):
        self.runs = 0

    def __call__(self, model, inputs):
        self.runs += 1
        return {"output": model(ops.convert_to_tensor(inputs))}


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.layers[0].kernel.assign(np.ones((3, 2)))
    return model


def test_same_shape_compiles_once_whatever_the_weights(model):
    function = Counted()
    compiled = compile_function(function, model)
    for value, weight in ((1.0, 1.0), (2.0, 5.0)):
        model.layers[0].kernel.assign(np.full((3, 2), weight))
        output = to_numpy(compiled(np.full((4, 3), value, "float32"))["output"])
        np.testing.assert_allclose(output, np.full((4, 2), 3 * value * weight))
    assert function.runs == (2 if keras.config.backend() == "torch" else 1)  # It runs eagerly.


def test_many_shapes_give_no_warning(model, caplog):
    compiled = compile_function(Counted(), model)
    for batch in range(1, 9):
        assert to_numpy(compiled(np.ones((batch, 3), "float32"))["output"]).shape == (batch, 2)
    assert not caplog.records


def test_one_graph_for_any_shape(model):
    function = Counted()
    compiled = compile_function(lambda m, x, y: function(m, x[0]), model, any_shape=True)
    for rows in (1, 4, 2):
        inputs = np.ones((rows, 3), "float32")
        output = compiled((inputs, None), np.int32(5))["output"]
        np.testing.assert_allclose(to_numpy(output), np.full((rows, 2), 3))
    assert function.runs == (1 if makes_graphs() else 3)


def test_leaves_no_gradient_behind(model):
    compile_function(Counted(), model)(np.ones((4, 3), "float32"))
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)
    # The gradient of the mean square of 3 - 1 is (3 - 1) for each input of 1; the rate is 0.01.
    np.testing.assert_allclose(to_numpy(model.layers[0].kernel), np.full((3, 2), 1 - 0.02))


# Compiles one function; prints the numbers of programs that were found on disk, and the result.
SCRIPT = """
import json
import jax, keras, numpy as np
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
)
from keras_transformer import compile_function
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
compiled = compile_function(lambda m, x: m(keras.ops.convert_to_tensor(x)), model)
output = keras.ops.convert_to_numpy(compiled(np.ones((4, 3), "float32")))
print(json.dumps([len(hits), output.tolist(), jax.config.jax_compilation_cache_dir]))
"""


def run_on_jax(cache):
    """Returns the number of programs found, the folder of the cache, and messages."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"):
            patch.delenv(name, raising=False)
        done = python("-c", SCRIPT, XDG_CACHE_HOME=str(cache), KERAS_BACKEND="jax")
    hits, output, folder = json.loads(done.stdout.splitlines()[-1])
    assert output == [[3.0, 3.0]] * 4
    return hits, folder, done.stderr


@pytest.mark.once
@pytest.mark.slow
def test_the_next_process_on_jax_finds_the_programs_unless_they_are_broken(tmp_path):
    assert run_on_jax(tmp_path)[0] == 0
    hits, folder, _ = run_on_jax(tmp_path)
    (parent,) = tmp_path.glob("keras_transformer/jax/*")
    assert hits > 0 and folder == str(parent)
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    for entry in parent.glob("*-cache"):
        entry.write_bytes(b"broken" * 100)
    assert run_on_jax(tmp_path)[0] == 0


@pytest.mark.once
def test_a_cache_that_cannot_be_written_is_not_used(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    hits, folder, messages = run_on_jax(tmp_path / "file")
    assert (hits, folder) == (0, None)
    assert "Error writing" not in messages
