"""A shorter import of Keras, for commands that compile nothing with PyTorch's Dynamo."""

import os
import subprocess
import sys

import keras

SHORTEN = (
    "import sys; from keras_transformer._backend.short_import import shorten_import_of_keras as s; "
    "s(); import keras; "
)


def run_python(code: str, backend: str = keras.config.backend()) -> str:
    return subprocess.run(
        [sys.executable, "-c", SHORTEN + code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    ).stdout.strip()


def test_other_libraries_are_imported_when_they_are_used():
    code = (
        "unused = {'torch': ('jax', 'torch._dynamo', 'tensorflow'), 'jax': ('torch', 'tensorflow')}"
        "; print([x for x in unused.get(keras.config.backend(), ()) if x in sys.modules]); "
        "import keras.callbacks; print(float(keras.random.uniform((1,), seed=1)[0]) < 1)"
    )
    assert run_python(code).splitlines() == ["[]", "True"]


def test_models_translate_without_the_other_libraries():
    code = (
        "from keras_transformer import Transformer, search; import numpy as np; "
        "model = Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7); "
        "search(model, np.array([[4, 3]]), max_length=4); print('torch._dynamo' in sys.modules)"
    )
    assert run_python(code) == "False"


def test_functions_are_disabled_on_pytorch_as_soon_as_dynamo_is_there():
    code = (
        "from keras.src.backend.torch import random; draw = random.torch_seed_generator; "
        "draw(1); import torch._dynamo as dynamo; real, marked = dynamo.disable, []; "
        "dynamo.disable = lambda: lambda f: marked.append(f.__name__) or real()(f); "
        "draw(1); draw(1); print(marked)"
    )
    assert run_python(code, "torch") == "['torch_seed_generator']"


def test_an_imported_keras_is_left_alone():
    code = "before = list(sys.meta_path); s(); print(sys.meta_path == before)"
    assert run_python(code) == "True"
