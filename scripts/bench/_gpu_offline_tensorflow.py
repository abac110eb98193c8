"""What XLA makes of TensorFlow's training step for an H100, on a machine without a GPU.

TensorFlow translates the step for XLA. It has no compiler for a GPU that is only described, so
JAX's CUDA plugin compiles the translation, by an XLA of another version. Nothing is run. As a
program: a worker for one case.
"""

import json
import sys

import _common
from _gpu_offline_jax import NO_TRITON, counted, h100
from _tensorflow_program import compiled, written
from _training_engines import Case
from jax._src.compiler import get_compile_options


def program(case: Case) -> str:
    """XLA's optimized program of a training step."""
    options = get_compile_options(1, 1, env_options_overrides=NO_TRITON)
    found, _ = compiled(written(case), h100(), options)
    return found.hlo_modules()[0].to_string()


if __name__ == "__main__":
    _common.serve(lambda: {"count": lambda: counted(program(Case(**json.loads(sys.argv[1]))))})
