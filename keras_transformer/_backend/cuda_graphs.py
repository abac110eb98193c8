"""Runs the training steps of PyTorch on a GPU as CUDA graphs."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch.overrides import TorchFunctionMode

_MOST_GRAPHS = 32
# Files in which the cause of a wait is not found.
_NOT_SHOWN = (__file__, warnings.__file__, str(Path(torch.__file__).parent))
_WAITS = "called a synchronizing CUDA operation"


class GraphedStep:
    """Trains a model on PyTorch by CUDA graphs, which are recordings of a step's kernels.

    Python takes longer to start the kernels of a step than a GPU takes to run them. A graph starts
    all of them by one call. The first batch is trained without a graph. Then each shape of batches
    gets a graph when it first occurs, up to 32 shapes. With more, all steps run without graphs.

    Numbers that Python computes are constants of the recording, as in a program that XLA compiles.
    A step in which Python reads a value from the GPU can't be recorded. Examples are gradient
    accumulation and loss scaling, which decide in Python what to do.

    Args:
        model: A compiled Keras model. Its `train_step` returns a dict of tensors, and changes other
            tensors in place only.
        is_required: Whether to raise an error if the step can't be recorded. Defaults to False,
            which means that all steps run without a graph then.

    Call arguments:
        data: A list or iterator. The next element is a batch, which is a nested structure of
            arrays and None.

    Returns:
        A dict, the result of `train_step`.

    Raises:
        ValueError: If `is_required` is True, and the step can't be recorded.

    Source: "CUDA Graphs" in PyTorch's documentation.
    """

    def __init__(self, model: Any, is_required: bool = False) -> None:
        self._model = model
        self._is_required = is_required
        self._has_begun = False
        self._reason: str | None = None  # why steps can't be recorded
        self._recordings: dict[str, _Recording] = {}
        self._stream = torch.cuda.Stream()
        # The graphs share their memory, because they never run at the same time.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, data: Any) -> dict[str, Any]:
        batch = next(iter(data))
        arrays = [x for x in keras.tree.flatten(batch) if x is not None]
        if self._reason is not None or not all(hasattr(x, "dtype") for x in arrays):
            return self._model.train_step(batch)
        key = f"{keras.tree.map_structure(_kind, batch)}"
        if not self._has_begun:
            return self._first_step(batch)
        recording = self._recordings.get(key) or self._record(key, batch)
        if recording is None:
            return self._model.train_step(batch)
        recording.assign(batch)
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.result.items()}

    def _first_step(self, batch: Any) -> dict[str, Any]:
        """Makes a step without a graph, which shows whether Python waits for the GPU."""
        self._has_begun = True
        batch = _on_device(batch)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), NumbersOnDevice(), _waits() as waits:
            result = self._model.train_step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        if waits:
            self._give_up(f"Python waits for the GPU in {waits[0]}")
        return result

    def _record(self, key: str, batch: Any) -> "_Recording | None":
        """Records the step of a batch, but does not make it. Returns None if that fails."""
        if len(self._recordings) == _MOST_GRAPHS:
            self._give_up(f"the batches have more than {_MOST_GRAPHS} shapes")
            return None
        graph, batch = torch.cuda.CUDAGraph(), _on_device(batch)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream), NumbersOnDevice():
                result = self._model.train_step(batch)
        except RuntimeError as error:
            self._give_up(f"{error}")
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


@dataclass
class _Recording:
    """The graph of a training step, with the tensors that it reads and those that it makes."""

    graph: Any
    batch: Any
    result: dict[str, Any]

    def assign(self, batch: Any) -> None:
        for own, given in zip(*map(keras.tree.flatten, (self.batch, batch)), strict=True):
            if own is not None:
                own.copy_(ops.convert_to_tensor(given))


class NumbersOnDevice(TorchFunctionMode):
    """Makes 0-d tensors of numbers on the GPU. PyTorch would copy the numbers, and wait for it."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        makes_tensor = function in (torch.as_tensor, torch.tensor)
        if makes_tensor and not isinstance(args[0], torch.Tensor) and np.ndim(args[0]) == 0:
            number = args[0].item() if hasattr(args[0], "item") else args[0]
            return torch.full((), number, **kwargs)
        return function(*args, **kwargs)


def _on_device(batch: Any) -> Any:
    return keras.tree.map_structure(
        lambda x: x if x is None else ops.convert_to_tensor(x).clone(), batch
    )


def _kind(x: Any) -> Any:
    return None if x is None else (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))


@contextmanager
def _waits() -> Iterator[list[str]]:
    """Yields a list, which gets the place of each line of Python that waits for the GPU."""
    places: list[str] = []

    def show(message: Any, *arguments: Any, **options: Any) -> None:
        if not f"{message}".startswith(_WAITS):
            original(message, *arguments, **options)
            return
        calls = [x for x in traceback.extract_stack() if not x.filename.startswith(_NOT_SHOWN)]
        places.append(f"{calls[-1].filename}:{calls[-1].lineno}" if calls else "a gradient")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this mode is a prototype.
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            original, warnings.showwarning = warnings.showwarning, show
            warnings.filterwarnings("always", _WAITS)
            yield places
    finally:
        torch.cuda.set_sync_debug_mode(before)
