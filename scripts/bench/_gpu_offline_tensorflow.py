"""What XLA makes of TensorFlow's training step for an H100, on a machine without a GPU.

TensorFlow translates the step for XLA. It has no compiler for a GPU that is only described, so
JAX's CUDA plugin compiles the translation, by an XLA of another version. Nothing is run. As a
program: a worker for one case.
"""

import json
import sys
from typing import Any
from unittest import mock

import _common
import tensorflow as tf
from _gpu_offline_jax import NO_TRITON, counted, h100
from _training_engines import Case, our_trainer
from jax._src.compiler import get_compile_options
from jax._src.interpreters import mlir
from jax._src.lib import _jax
from jax._src.lib.mlir.dialects import hlo

from keras_transformer._backend import operations
from keras_transformer.training import sliced_logits_trainer


def program(case: Case) -> str:
    """XLA's optimized program of a training step."""
    with (
        mock.patch.object(operations, "is_on_cpu", return_value=False),
        mock.patch.object(sliced_logits_trainer, "is_on_cpu", return_value=False),
    ):
        trainer, inputs, labels = our_trainer(case, "mixed_bfloat16", True)
        trainer.optimizer.build(trainer.trainable_variables)
        step = tf.function(lambda x, y: trainer.train_step((x, y)), jit_compile=True)
        batch = tf.nest.map_structure(tf.convert_to_tensor, (inputs, labels))
        code = step.experimental_get_compiler_ir(*batch)(stage="stablehlo_serialized")
    options = get_compile_options(1, 1, env_options_overrides=NO_TRITON)
    gpu = h100()
    with mlir.make_ir_context():
        module = hlo.deserialize_portable_artifact(mlir.ir.Context.current, code)
        without_copies(module)
        found = gpu.client.compile(module, _jax.DeviceList((gpu,)), options)
    return found.hlo_modules()[0].to_string()


def without_copies(module: Any) -> None:
    """Removes TensorFlow's copies of values, which the plugin does not know, from a program."""
    for function in module.body.operations:
        for operation in list(function.entry_block.operations):
            if operation.name == "mhlo.copy":
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()


if __name__ == "__main__":
    _common.serve(lambda: {"count": lambda: counted(program(Case(**json.loads(sys.argv[1]))))})
