"""Runs the training steps of PyTorch on a GPU as CUDA graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import torch
from keras import ops

_MOST_GRAPHS = 32


class GraphedStep:
    """Runs training steps on PyTorch by CUDA graphs, which are recordings of a step's kernels.

    Python takes longer to start the kernels of a step than a GPU takes to run them. A graph starts
    all of them by one call. The first batch of each shape is trained without a graph, which
    compiles the step. The second is recorded, up to 32 shapes. With more, all steps run without
    graphs.

    Numbers that Python computes are constants of the recording, as in a program that XLA compiles.
    A step in which Python reads a value from the GPU can't be recorded.

    Args:
        step: Function that trains a model on a batch, a nested structure of arrays and None. It
            returns a dict of tensors, and changes other tensors in place only.
        model: The model, whose gradients are freed between the steps.
        is_required: Whether to raise an error if the step can't be recorded. Defaults to False,
            which means that all steps run without a graph then.

    Call arguments:
        data: A list or iterator. The next element is a batch.

    Returns:
        The result of `step`.

    Raises:
        ValueError: If `is_required` is True, and the step can't be recorded.

    Source: "CUDA Graphs" in PyTorch's documentation.
    """

    def __init__(self, step: Callable[[Any], Any], model: Any, is_required: bool = False) -> None:
        self._step = step
        self._model = model
        self._is_required = is_required
        self._reason: str | None = None  # why steps can't be recorded
        self._recordings: dict[str, _Recording | None] = {}  # None after a shape's first batch
        self._stream = torch.cuda.Stream()
        # The graphs share their memory, because they never run at the same time.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, data: Any) -> dict[str, Any]:
        batch = next(iter(data))
        arrays = [x for x in keras.tree.flatten(batch) if x is not None]
        if self._reason is not None or not all(hasattr(x, "dtype") for x in arrays):
            return self._step(batch)
        key = f"{keras.tree.map_structure(_kind, batch)}"
        if key not in self._recordings:
            return self._first_step(key, batch)
        recording = self._recordings[key] or self._record(key, batch)
        if recording is None:
            return self._step(batch)
        recording.assign(batch)
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.result.items()}

    def _first_step(self, key: str, batch: Any) -> dict[str, Any]:
        """Trains without a graph on the first batch of a shape."""
        if len(self._recordings) == _MOST_GRAPHS:
            self._give_up(f"the batches have more than {_MOST_GRAPHS} shapes")
            return self._step(batch)
        self._recordings[key] = None
        batch = _on_device(batch)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        self._model.zero_grad()
        return result

    def _record(self, key: str, batch: Any) -> "_Recording | None":
        """Records the step of a batch, but does not make it. Returns None if that fails."""
        graph, batch = torch.cuda.CUDAGraph(), _on_device(batch)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream):
                result = self._step(batch)
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


def _on_device(batch: Any) -> Any:
    return keras.tree.map_structure(
        lambda x: x if x is None else ops.convert_to_tensor(x).clone(), batch
    )


def _kind(x: Any) -> Any:
    return None if x is None else (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
