"""TensorFlow's training step as a StableHLO program, which JAX compiles without TensorFlow.

TensorFlow's wheels for GPUs are large, but this program of `base` has 1.4 MB. As a program: writes
it to a file, `_tensorflow_program.py CASE FILE`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _training_engines import Case, our_trainer

# An argument whose memory the program may use for a result, which is its next value.
ALIAS = re.compile(r"parameter_number = (\d+).*?output_index = array<i64: (\d+)>")
BATCH = 3  # Its first arguments are source ids, target ids and labels, and then all variables.


def written(case: Case) -> bytes:
    """The step on a GPU, in mixed_bfloat16."""
    import tensorflow as tf

    from keras_transformer.training import sliced_logits_trainer

    with mock.patch.object(sliced_logits_trainer, "is_on_cpu", return_value=False):
        trainer, inputs, labels = our_trainer(case, "mixed_bfloat16", True)
        trainer.optimizer.build(trainer.trainable_variables)
        step = tf.function(lambda x, y: trainer.train_step((x, y)), jit_compile=True)
        batch = tf.nest.map_structure(tf.convert_to_tensor, (inputs, labels))
        return step.experimental_get_compiler_ir(*batch)(stage="stablehlo_serialized")


def compiled(code: bytes, device: Any, options: Any, method: str = "compile") -> tuple[Any, Any]:
    """What a method of JAX's client makes of the program, and the types of its arguments.

    With each type comes the index of the result that is its next value, or "".
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir.dialects import hlo

    with mlir.make_ir_context():
        module = hlo.deserialize_portable_artifact(mlir.ir.Context.current, code)
        for function in module.body.operations:
            for operation in list(function.entry_block.operations):
                if operation.name == "mhlo.copy":  # which JAX does not know
                    operation.results[0].replace_all_uses_with(operation.operands[0])
                    operation.erase()
        (main,) = (x for x in module.body.operations if x.name.value == "main")
        types = [str(x.type) for x in main.entry_block.arguments]
        places = dict(ALIAS.findall(str(module.operation.attributes["mhlo.input_output_alias"])))
        found = getattr(device.client, method)(module, _jax.DeviceList((device,)), options)
        return found, [(x, places.get(str(i), "")) for i, x in enumerate(types)]


def step_of(code: bytes) -> Callable[[], Any]:
    """A function that makes a step with weights made up here, and returns a metric."""
    import jax
    from jax._src.compiler import get_compile_options

    device, random = jax.devices()[0], np.random.default_rng(0)
    options = get_compile_options(1, 1)
    program, arguments = compiled(code, device, options, "compile_and_load")

    def array(place: int, kind: str) -> Any:
        *sizes, dtype = re.fullmatch(r"tensor<(?:(.*)x)?(\w+)>", kind).groups()
        shape = [int(x) for x in (sizes[0] or "").split("x") if x]
        if dtype.startswith("i"):  # Others than ids are counters.
            return random.integers(1, 500 if place < BATCH else 2, shape, f"int{dtype[1:]}")
        return random.uniform(0, 0.02, shape).astype(f"float{dtype[1:]}")

    with jax.enable_x64(True):
        arrays = [jax.device_put(array(i, x), device) for i, (x, _) in enumerate(arguments)]

    def step() -> Any:
        results = program.execute_sharded(arrays).disassemble_into_single_device_arrays()
        for index, (_, place) in enumerate(arguments):
            if place:
                arrays[index] = results[int(place)][0]
        return results[0][0]

    return step


if __name__ == "__main__":
    import gpu

    (case,) = (x for x in (*gpu.CASES, gpu.SMALL) if x.name == sys.argv[1])
    Path(sys.argv[2]).write_bytes(written(case))
