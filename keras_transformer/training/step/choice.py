"""Chooses the training step of PyTorch on one device."""

from typing import TYPE_CHECKING, Literal

import keras

from keras_transformer._backend.compile_function import is_on_cuda
from keras_transformer.training.step.optimizer import inner_optimizer

if TYPE_CHECKING:
    from keras_transformer.training.step.graphed_step import GraphedStep

# Compiling takes up to a minute for each shape of batches, so smaller models run without.
_LARGE = 20_000_000


def uses_graphs(
    model: keras.Model, jit_compile: bool | Literal["auto"], one_device: bool
) -> bool | Literal["auto"]:
    """Returns whether a compiled model trains by CUDA graphs on PyTorch: True, False or "auto".

    Raises `ValueError` if `jit_compile` is True, but graphs are impossible.
    """
    optimizer = inner_optimizer(model)
    needs = {
        "a GPU of CUDA": is_on_cuda(),
        "Triton": not is_on_cuda() or _has_triton(),
        "training on one device": one_device,
        "no gradient accumulation": not optimizer.gradient_accumulation_steps,
        "no loss scaling, as in mixed_float16": optimizer is model.optimizer,
        "no ema_overwrite_frequency": not optimizer.ema_overwrite_frequency,
        "run_eagerly=False": not model.run_eagerly,
    }
    lacking = [name for name, is_given in needs.items() if not is_given]
    if jit_compile is True and lacking:
        raise ValueError(
            "On PyTorch, jit_compile=True records CUDA graphs, which needs "
            f"{' and '.join(lacking)}: use jit_compile=auto. Received: jit_compile=True"
        )
    return False if lacking else jit_compile


def graphed_step(model: keras.Model, is_required: bool) -> "GraphedStep":
    """Returns the step by CUDA graphs, compiled if the model is large or graphs are required."""
    from keras_transformer.training.step.compiled_step import CompiledStep
    from keras_transformer.training.step.graphed_step import GraphedStep, recordable

    is_compiled = is_required or model.count_params() >= _LARGE
    step = CompiledStep(model) if is_compiled else recordable(model.train_step)
    return GraphedStep(step, model, is_required)


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()
