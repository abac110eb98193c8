"""The training step of PyTorch on one GPU, as CUDA graphs."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import keras
import torch
from keras import ops
from torch.utils._triton import has_triton

from keras_transformer._backend.compile_function import is_on_cuda
from keras_transformer._backend.cuda_graphs import MOST_GRAPHS, Recordable, shape_and_dtype
from keras_transformer.training.step.optimizer import inner_optimizer

Logs = dict[str, torch.Tensor]

# Compiling takes up to a minute for each shape of batches, so smaller models run without.
_LARGE = 20_000_000


class GraphedStep:
    """Runs training steps on PyTorch by CUDA graphs, which are recordings of a step's kernels.

    Python takes longer to start the kernels of a step than a GPU takes to run them. A graph starts
    all of them by one call. The first batch of each shape is trained without a graph, which
    compiles the step. The second is recorded, up to 32 shapes. With more, or if Python reads a
    value from the GPU in a step, it warns, and all steps run without a graph, or raises ValueError
    if `is_required` is True. Numbers that Python computes are constants of the recording.

    `step` trains `model` on a batch, a nested structure of arrays and None. It returns a dict of
    tensors, and changes other tensors in place only. A call takes an iterable of a batch.

    Source: "CUDA Graphs" in PyTorch's documentation.
    """

    def __init__(
        self, step: Callable[[Any], Logs], model: keras.Model, is_required: bool = False
    ) -> None:
        self._step = step
        self._model = model
        self._is_required = is_required
        self._reason: str | None = None  # why steps can't be recorded
        self._recordings: dict[str, _Recording | None] = {}  # None after a shape's first batch
        self._stream = torch.cuda.Stream()
        # The graphs share their memory, because they never run at the same time.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, data: Iterable[Any]) -> Logs:
        batch = next(iter(data))
        if self._reason is not None:
            return self._step(batch)
        key = f"{keras.tree.map_structure(shape_and_dtype, batch)}"
        if key not in self._recordings:
            return self._first_step(key, batch)
        recording = self._recordings[key] or self._record(key, batch)
        if recording is None:
            return self._step(batch)
        for own, given in zip(*map(keras.tree.flatten, (recording.batch, batch)), strict=True):
            if own is not None:
                own.copy_(_pinned(given, own.is_cuda), non_blocking=True)
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.result.items()}

    def _first_step(self, key: str, batch: object) -> Logs:
        """Trains without a graph on the first batch of a shape."""
        if len(self._recordings) == MOST_GRAPHS:
            self._give_up(f"the batches have more than {MOST_GRAPHS} shapes")
            return self._step(batch)
        self._recordings[key] = None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        self._model.zero_grad()
        return result

    def _record(self, key: str, batch: object) -> "_Recording | None":
        """Records the step of a batch, but does not make it. Returns None if that fails."""
        graph = torch.cuda.CUDAGraph()
        batch = keras.tree.map_structure(lambda x: x if x is None else ops.copy(x), batch)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream):
                result = self._step(batch)
        except RuntimeError as error:
            # When `graph` ends after a failure, it raises another error, which says less.
            self._give_up(f"{error.__context__ or error}")
            return None
        self._model.zero_grad()  # Other graphs can use the memory of the gradients.
        self._recordings[key] = _Recording(graph, batch, result)
        return self._recordings[key]

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._recordings.clear()
        self._model.zero_grad()
        if self._is_required:
            raise ValueError(
                "`jit_compile=True` records the training step as a CUDA graph on PyTorch, but this "
                f"step can't be recorded. Use `jit_compile=False`. The reason: {reason}"
            )
        warnings.warn(f"Training is slow: no CUDA graphs, because {reason}", stacklevel=2)


def _pinned(x: Any, for_cuda: bool) -> torch.Tensor:
    """Moves an array to memory from which a GPU copies while Python makes the next batch."""
    with keras.device("cpu"):
        x = x if torch.is_tensor(x) else ops.convert_to_tensor(x)
    return x.pin_memory() if for_cuda and not x.is_cuda else x


class _Recording(NamedTuple):
    """The graph of a training step, with the tensors that it reads and those that it makes."""

    graph: Any
    batch: Any
    result: Logs


def uses_graphs(
    trainer: keras.Model, jit_compile: bool | Literal["auto"]
) -> bool | Literal["auto"]:
    """Returns whether a `SlicedLogitsTrainer` uses CUDA graphs: True, False or "auto".

    Raises `ValueError` if `jit_compile` is True, but graphs are impossible.
    """
    optimizer = inner_optimizer(trainer)
    needs = {
        "a GPU of CUDA": is_on_cuda(),
        "Triton": not is_on_cuda() or has_triton(),
        "training on one device": trainer.distribution.is_one_device,
        "no gradient accumulation": not optimizer.gradient_accumulation_steps,
        "no loss scaling, as in mixed_float16": optimizer is trainer.optimizer,
        "no ema_overwrite_frequency": not optimizer.ema_overwrite_frequency,
        "run_eagerly=False": not trainer.run_eagerly,
    }
    lacking = [name for name, is_given in needs.items() if not is_given]
    if jit_compile is True and lacking:
        raise ValueError(
            "On PyTorch, jit_compile=True records CUDA graphs, which needs "
            f"{' and '.join(lacking)}: use jit_compile=auto. Received: jit_compile=True"
        )
    return False if lacking else jit_compile


def graphed_step(model: keras.Model, is_required: bool) -> GraphedStep:
    """Returns the step by CUDA graphs, compiled if the model is large or graphs are required."""
    from keras_transformer.training.step.compiled_step import CompiledStep

    def eager_step(batch: object) -> Logs:
        with Recordable():
            return model.train_step(batch)

    is_compiled = is_required or model.count_params() >= _LARGE
    return GraphedStep(CompiledStep(model) if is_compiled else eager_step, model, is_required)
